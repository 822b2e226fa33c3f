"""How much of the devices' arithmetic a training uses: floating-point operations of an update, and of the devices."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import Mesh

from convs2s_jax.nn.types import Tree
from convs2s_jax.training import flops
from convs2s_jax.training.batch import Batch, LossSums
from convs2s_jax.training.run.programs.abstract_arrays import abstract_key, placed, places
from convs2s_jax.training.step import Loss, Step, gradients

TERA = 1e12
PEAKS: Mapping[str, float] = MappingProxyType(
    {
        "TPU v2": 22.5 * TERA,  # a device is one of the two cores of a chip
        "TPU v3": 61.5 * TERA,  # as above
        "TPU v4": 275 * TERA,
        "TPU v5 lite": 197 * TERA,
        "TPU v5": 459 * TERA,
        "TPU v5p": 459 * TERA,
        "TPU v6 lite": 918 * TERA,
        "TPU7x": 1153.5 * TERA,  # a device is one of the two halves of a chip
        "Tesla T4": 65 * TERA,
        "Tesla V100": 125 * TERA,
        "Tesla V100-PCIE": 112 * TERA,
        "NVIDIA A100-SXM4-40GB": 312 * TERA,
        "NVIDIA A100-SXM4-80GB": 312 * TERA,
        "NVIDIA A100-PCIE-40GB": 312 * TERA,
        "NVIDIA A100 80GB PCIe": 312 * TERA,
        "NVIDIA L4": 121 * TERA,
        "NVIDIA H100 80GB HBM3": 989.4 * TERA,
        "NVIDIA H100 PCIe": 756 * TERA,
        "NVIDIA H200": 989.4 * TERA,
        "NVIDIA B200": 2250 * TERA,
    }
)
"""Operations per second of a device by the prefix of its kind, in bfloat16 (T4, V100: float16), without sparsity.

`scaling.chips` has the other rates of some of them.

Sources: the pages of Google Cloud's documentation on each TPU version ("Peak compute per chip"), and NVIDIA's data
sheets, where numbers with sparsity are halved.
"""


FORMS = frozenset({"PCIE", "NVL", "MIG"})
"""Words in the kind of a GPU that is slower than the one without them: a card, or a part of a GPU."""


def known_kind(device_kind: str) -> str | None:
    """The entry of `PEAKS` for a JAX device of this kind, such as "NVIDIA H200 141GB HBM3e"; None if there is none.

    A kind with a word of `FORMS` has an entry only if that has the word as well.
    """
    known = [name for name in PEAKS if device_kind == name or device_kind.startswith((f"{name} ", f"{name}-"))]
    nearest = max(known, key=len, default="")
    return nearest if nearest and _forms(device_kind) == _forms(nearest) else None


def _forms(kind: str) -> frozenset[str]:
    return FORMS & set(re.split("[ -]", kind.upper()))


def peak_flops(mesh: Mesh, given: float | None) -> float | None:
    """Operations per second of all devices of a mesh.

    Args:
      mesh: the devices.
      given: rate of one device; None for that of `PEAKS`.

    Returns:
      The rate; None if it is not given and the kind of device is not known, as for CPUs.
    """
    known = known_kind(mesh.devices.flat[0].device_kind)
    rate = PEAKS[known] if given is None and known else given
    return None if rate is None else rate * mesh.devices.size


def counter(step: Step[Batch, LossSums], loss: Loss[Batch, LossSums], params: Tree) -> Callable[[Batch], float]:
    """Return a function that counts the operations of the products in the gradient of a batch, over all devices.

    They are counted in the program that `step.first` is traced to, once for each shape (`training.flops`), with the
    forms of convolutions that it computes. Recomputation (`model.execution.remat`) is not counted.

    Args:
      step: the update. With `parallel="pmap"` its program is not available, and that of the loss is traced.
      loss: of a batch, as the update computes it.
      params: trained parameters; they may be deleted afterwards.
    """
    params = placed(params, places(params))
    first: Any = step.first
    found: dict[Any, float] = {}

    def of_program(batch: Batch) -> flops.Flops:
        if hasattr(first, "trace"):
            return flops.of_jaxpr(first.trace(params, batch, abstract_key()).jaxpr.jaxpr)
        plain = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, batch))
        return flops.count(lambda *given: gradients(loss, *given[:2], key=given[2]), *plain, abstract_key())

    def counted(batch: Batch) -> float:
        shape = (batch.src.shape, batch.tgt.shape)
        if shape not in found:
            found[shape] = float(of_program(batch).model)
        return found[shape]

    return counted
