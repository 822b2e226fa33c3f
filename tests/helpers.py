"""What tests of many files share: how results are compared, rows of padding, and which cases are drills."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from convs2s_jax.core.tokens import PAD


def array(values: Any, dtype: Any = np.float32) -> jax.Array:
    """An array on the device. `jnp.asarray` would compile a program for each shape that it converts."""
    return jax.device_put(np.asarray(values, dtype))


def same(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    """Every leaf, element by element: relative to the element, or absolutely where it is small."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), a, b)


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    """Every leaf, relative to its largest element."""

    def leaf(a: Any, b: Any) -> None:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(initial=0.0))

    jax.tree.map(leaf, a, b)


def difference(ours: Any, theirs: Any) -> float:
    """Relative error by norm."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-30))


def padded(sentences: Iterable[list[int]], length: int, left: bool = False) -> jax.Array:
    """Rows of tokens [rows, length]."""
    rows = [[PAD] * (length - len(s)) + s if left else s + [PAD] * (length - len(s)) for s in sentences]
    return array(rows, jnp.int32)


def drills_but(cases: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
    """Parameters of a test of which `make test` runs those kept, and `make drills` all others."""
    cases, kept = list(cases), list(kept)
    assert all(case in cases for case in kept), "a case that is kept is none of the cases"
    marks = [() if case in kept else pytest.mark.drill for case in cases]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case, mark in zip(cases, marks, strict=True)
    ]


def operations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """All operations of a traced program, those within loops and calls too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from operations(inner)


def barriers(function, *args):
    """How many optimisation barriers the program of a function has, by platform."""
    traced = jax.jit(function).trace(*args)
    programs = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda", "tpu")}
    return {name: text.count("stablehlo.optimization_barrier") for name, text in programs.items()}


class StoppedClock:
    """In place of `time`: each sleep, however short, lasts `seconds`, and calls the action of its number."""

    def __init__(self, seconds, actions):
        self.seconds, self.actions, self.slept = seconds, actions, 0

    def monotonic(self):
        return self.seconds * self.slept

    def sleep(self, _seconds):
        self.slept += 1
        self.actions.get(self.slept, lambda: None)()
