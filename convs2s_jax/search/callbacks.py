"""Checks of the functions that a search calls and of what they return, with messages for those who write them."""

from collections.abc import Callable
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from convs2s_jax.search.finished import StoppingRule
from convs2s_jax.search.request import Request, check_request
from convs2s_jax.search.rules import SPECIAL, Fused
from convs2s_jax.search.state import StepCache, StepMemory
from convs2s_jax.search.strategies.base import Candidates, Strategy
from convs2s_jax.search.structure import Structure

StepFunction = Callable[[StepMemory, StepCache, Array], tuple[Array | Fused, StepCache]]
Coverage = Callable[[StepMemory, StepCache], Array]


def check_call(
    step: StepFunction,
    strategy: Strategy,
    structure: Structure,
    memory: StepMemory,
    cache: StepCache,
    request: Request,
    coverage: Coverage | None,
    limit: int,
    chunk: int,
) -> int:
    """Reject shapes and options that do not fit together. Return V, the size of the vocabulary."""
    for name, value in (("limit", limit), ("chunk", chunk)):
        if not isinstance(value, Integral):
            raise TypeError(f"{name} is {value}: expected a Python integer, which is static under `jit`")
    if limit < 1 or chunk < 1:
        raise ValueError(f"limit is {limit} and chunk is {chunk}: use 1 or more for both")
    if structure.coverage and coverage is None:
        raise ValueError("coverage is None, but the search has a coverage penalty: pass coverage")
    if not isinstance(strategy.stop, StoppingRule | None):
        raise TypeError(f"stop is {strategy.stop!r}: expected a StoppingRule, such as StoppingRule(is_done)")
    strategy.check(request)
    B = request.max_lengths.shape[0]
    N = B * structure.beam_size
    if B == 0:
        raise ValueError("max_lengths is empty: a search needs at least one sentence")
    for name, tree, rows, what in (("memory", memory, B, "B"), ("cache", cache, N, "B * W")):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if np.shape(leaf)[:1] != (rows,):
                place = name + jax.tree_util.keystr(path)
                raise ValueError(f"{place} has shape {np.shape(leaf)}: axis 0 must have {what} = {rows} rows")
    result = jax.eval_shape(step, memory, cache, jax.ShapeDtypeStruct((N,), jnp.int32))
    if not isinstance(result, tuple | list) or len(result) != 2:
        what = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        raise ValueError(f"the step returns {what}: expected two values, (logits [N, V], cache)")
    logits, after = result
    if structure.language_model and not isinstance(logits, Fused):
        raise ValueError("lm_weight is above 0, but the step returns no logits of a language model: return Fused(...)")
    V = check_result(N, cache, logits, after)
    check_request(request, V, limit)
    return V


def check_result(rows: int, cache: StepCache, logits: Array | Fused, after: StepCache) -> int:
    """Reject results of a step whose shapes do not fit its inputs, `rows` last symbols and `cache`. Return V."""
    parts: dict[str, Array] = (
        {"logits.model": logits.model, "logits.lm": logits.lm} if isinstance(logits, Fused) else {"logits": logits}
    )
    V: tuple[int, ...] = ()
    for name, part in parts.items():
        if not hasattr(part, "shape"):
            raise TypeError(
                f"{name} of the step is a {type(part).__name__}: expected an array [N, V], or [M, N, V] for an "
                "ensemble, as jnp.stack makes of a list"
            )
        V = V or part.shape[-1:]
        ranks = (2,) if name == "logits.lm" else (2, 3)
        if part.ndim not in ranks or part.shape[-2:] != (rows, *V) or V[0] < SPECIAL:
            raise ValueError(
                f"{name} of the step has shape {part.shape}: expected [N, V], or [M, N, V] for an ensemble, with the "
                f"same V >= {SPECIAL} symbols and N = {rows} rows, one for each last token of this call; take per-row "
                "inputs of the step from its cache or memory"
            )
    old, new = (jax.tree_util.tree_leaves_with_path(x) for x in (cache, after))
    if [path for path, _ in old] != [path for path, _ in new]:
        raise ValueError("the step returns a cache whose structure differs from that of its input cache")
    for (path, x), (_, y) in zip(old, new, strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise ValueError(
                f"cache{jax.tree_util.keystr(path)} enters the step as {x.dtype}{list(x.shape)} and is returned as "
                f"{y.dtype}{list(y.shape)}: shape and dtype must not change"
            )
    return int(V[0])


def check_candidates(candidates: Candidates, shape: tuple[int, int], dtype: DTypeLike) -> Candidates:
    """Return the candidates of a strategy, of which H stay alive; reject arrays that do not fit the beam."""
    if not isinstance(candidates, tuple) or len(candidates) != len(Candidates._fields):
        raise TypeError("`choose` of the strategy has to return Candidates(totals, parents, tokens)")
    for name, x, kind in zip(Candidates._fields, candidates, (dtype, jnp.int32, jnp.int32), strict=True):
        if (x.shape, x.dtype) != (shape, kind):
            raise ValueError(
                f"{name} of the strategy's candidates are {x.dtype}{list(x.shape)}: expected "
                f"{jnp.dtype(kind)}{list(shape)}, [R, 2H]"
            )
    return Candidates(*candidates)


def check_coverage(coverage: Array, rows: int, dtype: DTypeLike) -> Array:
    """Return what the coverage function returns as [N] in this dtype; reject what is not a number for each row."""
    coverage = jnp.asarray(coverage)
    if coverage.size != rows or not jnp.issubdtype(coverage.dtype, jnp.floating):
        raise ValueError(
            f"coverage returns {coverage.dtype}{list(coverage.shape)}: expected {dtype}[{rows}], one number for each "
            "row"
        )
    return coverage.reshape(rows).astype(dtype)


def check_done(done: Array, shape: tuple[int, ...]) -> Array:
    """Return what `is_done` of a stopping rule returns as an array, [R]; reject other arrays."""
    done = jnp.asarray(done)
    if (done.shape, done.dtype) != (shape, bool):
        raise ValueError(
            f"is_done of the stopping rule returns {done.dtype}{list(done.shape)}: expected bool{list(shape)}, [R]"
        )
    return done
