"""Floating-point operations of a function, counted in its traced program: nothing is compiled.

Matrix products and convolutions count two operations per multiply-add. Multiplications with padding that a convolution
adds itself do not count; those with zeros that the program adds before it do, as the layers of this package do (for a
kernel of width 3 and sentences of 64 tokens, 1 to 2 % of a convolution). Elementwise operations are left out, as is
usual for a share of a chip's peak, since they do not run on its matrix units. Loops count as often as they run.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, jaxprs_in_params

RECOMPUTED = "rematted_computation"
"""What `jax.checkpoint` adds to the names of operations that it recomputes."""


class Flops(NamedTuple):
    """Operations of all devices together.

    Attributes:
      model: of each product once.
      recomputed: of products that are recomputed to save memory.
      unknown: number of loops whose trip counts are not known from the program; each is counted as one trip.
    """

    model: int = 0
    recomputed: int = 0
    unknown: int = 0

    @property
    def executed(self) -> int:
        """What the devices compute."""
        return self.model + self.recomputed


def count(function: Callable[..., Any], *args: Any) -> Flops:
    """Count the operations of `function(*args)`.

    Args:
      function: any function of JAX, such as a gradient or `Step.first`.
      args: arrays, or `jax.ShapeDtypeStruct`s instead.
    """
    return of_jaxpr(jax.make_jaxpr(lambda *given: function(*given))(*args).jaxpr)


def of_jaxpr(jaxpr: Jaxpr, *, again: bool = False) -> Flops:
    """Count the operations of a program; with `again` all of it is recomputation."""
    total = Flops()
    for equation in jaxpr.eqns:
        repeated = again or RECOMPUTED in str(equation.source_info.name_stack)
        name, params = equation.primitive.name, equation.params
        if name in _PRODUCTS:
            counted = _PRODUCTS[name](equation)
            inner = [Flops(recomputed=counted) if repeated else Flops(model=counted)]
        else:
            inner = [of_jaxpr(each, again=repeated) for each in jaxprs_in_params(params)]
        if name == "cond":
            inner = [max(inner, key=lambda flops: flops.executed)]
        times = _times(name, params)
        total = Flops(
            total.model + times * sum(flops.model for flops in inner),
            total.recomputed + times * sum(flops.recomputed for flops in inner),
            total.unknown + sum(flops.unknown + (name == "while" and flops.executed > 0) for flops in inner),
        )
    return total


def _times(name: str, params: dict[str, Any]) -> int:
    """How often the inner program of an operation runs, on all devices together."""
    if name == "scan":
        return int(params["length"])
    if name == "shard_map":  # its shapes are those of a shard along its manual axes
        return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    return 1


def _product(equation: Any) -> int:
    """2 B M N K of a matrix product."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return 2 * math.prod(result) * math.prod(left[axis] for axis in contracted)


def _convolution(equation: Any) -> int:
    """2 B D C / groups of a convolution, times the pairs of an output position and a tap that read an input."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    image, kernel = (v.aval.shape for v in equation.invars[:2])
    result = equation.outvars[0].aval.shape
    pairs = 1
    for i, axis in enumerate(numbers.out_spec[2:]):
        taps = np.arange(kernel[numbers.rhs_spec[2 + i]]) * params["rhs_dilation"][i]
        places = np.arange(result[axis]) * params["window_strides"][i] - params["padding"][i][0]
        met, spread = places[:, None] + taps, params["lhs_dilation"][i]
        inside = (met >= 0) & (met <= (image[numbers.lhs_spec[2 + i]] - 1) * spread) & (met % spread == 0)
        pairs *= int(inside.sum())
    rows, features = (result[axis] for axis in numbers.out_spec[:2])
    return 2 * rows * features * kernel[numbers.rhs_spec[1]] * pairs


_PRODUCTS: dict[str, Callable[[Any], int]] = {"dot_general": _product, "conv_general_dilated": _convolution}
