"""Execution options of the layers of a model, shared by all kinds of models."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

from convs2s_jax.core.config import check, record
from convs2s_jax.nn.convolution import DenseForm
from convs2s_jax.nn.types import Array

Remat = Literal["none", "block", "dots", "offload"]
F = TypeVar("F", bound=Callable[..., Any])
SOFTMAX_ROWS = 512
SOFTMAX_ROWS_OF_GPUS = 4096
MatmulPrecision = Literal["default", "high", "highest"]
"""Precision of products of float32 arrays, as in `jax.lax.Precision`."""


def matmul_precision_context(precision: MatmulPrecision) -> AbstractContextManager[None]:
    """Return a context in which products are traced with this precision; "default" keeps JAX's current setting.

    It covers matrix products, convolutions and their derivatives.
    """
    return nullcontext() if precision == "default" else jax.default_matmul_precision(precision)


def has_fast_bfloat16_products(version: str = jax.__version__) -> bool:
    """Whether XLA's bfloat16 products on CPUs are faster than its convolutions, as they are from jax 0.11 on."""
    return tuple(int(part) for part in version.split(".")[:2]) >= (0, 11)


@record
class ExecutionConfig:
    """Options that affect compile time, run time and memory.

    Parameters are the same; results differ at most by rounding.

    Attributes:
      remat: which activations are saved for gradients; the rest are recomputed, which saves memory (`jax.checkpoint`).
        "none": save all. "block": save the input of each layer. "dots": save outputs of matrix products and
        convolutions. "offload": save outputs of matrix products without batch axes, in host memory (GPU, TPU); this
        recomputes convolutions of the form "xla". In recurrent decoders that attend at each time step, a block is one
        time step. True and False of earlier versions are "block" and "none".
      convolution: how dense convolutions are computed, "xla", "products" or "winograd" (`nn.convolution`). "auto" uses
        XLA's convolution, except for gradients on CPUs: in bfloat16 with jax 0.11 and newer, products; otherwise
        "winograd", which is faster and rounds more (docs/decisions.md), unless `matmul_precision` is set or mesh.tensor
        is above 1. Other kinds of convolution choose their form themselves.
      softmax_rows: maximum number of rows (target tokens of a device) whose scores the softmax layer of a decoder keeps
        at a time, in training. None: 512, which fit in the cache of a CPU, and 4096 on GPUs. A larger number makes
        larger products and uses more memory: 6 bytes for each row and word in bfloat16, 8 in float32.
    """

    remat: Remat = "none"
    convolution: Literal["auto", "xla", "products", "winograd"] = "auto"
    softmax_rows: int | None = None

    IGNORED = ("scan_layers",)

    def __post_init__(self) -> None:
        check(
            self.softmax_rows is None or self.softmax_rows >= 1,
            f"softmax_rows is {self.softmax_rows}: use 1 or more, or None",
        )

    @property
    def rows_of_scores(self) -> int:
        """`softmax_rows`, or `SOFTMAX_ROWS` if it is None."""
        return SOFTMAX_ROWS if self.softmax_rows is None else self.softmax_rows

    def with_remat(
        self,
        layer: F,
        *,
        scanned: bool = False,
        static: tuple[int, ...] = (),
    ) -> F:
        """Wrap the function of a layer in `jax.checkpoint`, with the policy of `remat`.

        Args:
          layer: any function of parameters and arrays.
          scanned: whether it is the body of a loop.
          static: indices of its arguments that are not arrays.
        """
        if self.remat == "none":
            return layer
        policy: Any = {"block": None, "offload": _offloaded, "dots": _products}[self.remat]
        checkpointed: Any = jax.checkpoint(layer, prevent_cse=not scanned, static_argnums=static, policy=policy)
        same: F = checkpointed
        return same

    @property
    def form(self) -> DenseForm:
        """The form of dense convolutions, with the default resolved."""
        return "xla" if self.convolution == "auto" else self.convolution

    def for_gradients(self, platform: str, dtype: str, *, plain: bool = False) -> "ExecutionConfig":
        """Return the options with defaults resolved for computing gradients on devices of this platform.

        Args:
          platform: cpu, gpu or tpu.
          dtype: dtype of the model.
          plain: whether convolutions have to be plain sums over taps, as "xla" and "products" are. These round less
            and communicate less.
        """
        chosen: dict[str, Any] = {}
        if self.convolution == "auto" and platform == "cpu":
            if dtype == "bfloat16" and has_fast_bfloat16_products():
                chosen["convolution"] = "products"
            elif not plain:
                chosen["convolution"] = "winograd"
        if self.softmax_rows is None and platform == "gpu":
            chosen["softmax_rows"] = SOFTMAX_ROWS_OF_GPUS
        return dataclasses.replace(self, **chosen)


def mark_product(x: Array) -> Array:
    """Mark x as the output of matrix products, which policies do not see in a function with a custom derivative."""
    named: Array = checkpoint_name(x, _PRODUCT)
    return named


def _products(primitive: Any, *_: Any, **params: Any) -> bool:
    """Policy that saves outputs of products: they are expensive, and none depends on kernels alone."""
    return primitive.name in ("dot_general", "conv_general_dilated") or (
        primitive.name == "name" and params["name"] == _PRODUCT
    )


def _offloaded(primitive: Any, *shapes: Any, **params: Any) -> Any:
    """The same for host memory, which stores outputs of matrix products only."""
    return (_OFFLOAD_NAMED if primitive.name == "name" else _OFFLOAD_DOTS)(primitive, *shapes, **params)


_PRODUCT = "matrix product"
_TO_HOST = {"offload_src": "device", "offload_dst": "pinned_host"}
_OFFLOAD_DOTS = jax.checkpoint_policies.offload_dot_with_no_batch_dims(**_TO_HOST)
_OFFLOAD_NAMED: Any = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=[_PRODUCT], **_TO_HOST
)


DEFAULT = ExecutionConfig()
