"""Execution options of the layers of a model, shared by all kinds of models."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

import jax

from convs2s_jax.core.config import check, record
from convs2s_jax.nn.convolution import DenseForm

F = TypeVar("F", bound=Callable[..., Any])
MatmulPrecision = Literal["default", "high", "highest"]
"""Precision of products of float32 arrays, as in `jax.lax.Precision`."""


def matmul_precision_context(precision: MatmulPrecision) -> AbstractContextManager[None]:
    """Return a context in which products are traced with this precision; "default" keeps JAX's current setting.

    It covers matrix products, convolutions and their derivatives.
    """
    return nullcontext() if precision == "default" else jax.default_matmul_precision(precision)


@record
class ExecutionConfig:
    """Options that affect compile time, run time and memory.

    Parameters are the same; results differ at most by rounding.

    Attributes:
      remat: which activations are saved for gradients; the rest are recomputed, which saves memory (`jax.checkpoint`).
        "none": save all. "block": save the input of each layer. "dots": save outputs of matrix products and
        convolutions. In recurrent decoders that attend at each time step, a block is one time step.
      convolution: how dense convolutions are computed, "xla", "products" or "winograd" (`nn.convolution`). "auto" uses
        XLA's convolution, except for gradients on CPUs: in bfloat16 with jax 0.11 and newer, products; otherwise
        "winograd", which is faster and rounds more (docs/decisions.md), unless `matmul_precision` is set or mesh.tensor
        is above 1. Other kinds of convolution choose their form themselves.
      softmax_rows: maximum number of rows (target tokens of a device) whose scores the softmax layer of a decoder keeps
        at a time, in training. None: 512, which fit in the cache of a CPU, and 4096 on GPUs. A larger number makes
        larger products and uses more memory: 6 bytes for each row and word in bfloat16, 8 in float32.
    """

    remat: Literal["none", "block", "dots"] = "none"
    convolution: DenseForm = "auto"
    softmax_rows: int | None = None

    RETIRED: ClassVar = MappingProxyType({"scan_layers": ...})

    def __post_init__(self) -> None:
        rows = self.softmax_rows
        check(rows is None or rows >= 1, f"softmax_rows is {rows}: use 1 or more, or None")

    def with_remat(self, layer: F, *, scanned: bool = False) -> F:
        """Wrap a layer, a function of parameters and arrays, in `jax.checkpoint` with the policy of `remat`.

        Args:
          layer: the function.
          scanned: whether it is the body of a loop.
        """
        if self.remat == "none":
            return layer
        policy: Any = PRODUCTS if self.remat == "dots" else None
        checkpointed: Any = jax.checkpoint(layer, prevent_cse=not scanned, policy=policy)
        return checkpointed


PRODUCT = "matrix product"
"""Name, for `checkpoint_name`, of outputs of products that policies do not see: those of custom derivatives."""
PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names(PRODUCT)
)
"""Policy that saves outputs of products: they are expensive, and none depends on kernels alone."""
