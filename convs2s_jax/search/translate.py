"""Sentences in, translations out: the model's step, the search and the batches put together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.encoder_decoder import ModelConfig, Params
from convs2s_jax.search.beam import Cache, Hypotheses, search
from convs2s_jax.search.buckets import Bucket, batches
from convs2s_jax.search.config import SearchConfig


@dataclass(frozen=True)
class Candidate:
    """One translation of a sentence.

    Attributes:
      tokens: ids without the end symbol.
      score: what candidates are ranked by: cumulative / length ** exponent.
      token_scores: nats of each token and of the end symbol: one more than `tokens`.
    """

    tokens: np.ndarray
    score: float
    token_scores: np.ndarray


@dataclass(frozen=True)
class Translation:
    """What was found for one sentence.

    Attributes:
      candidates: at least one, best first.
      cut: source tokens left out at the end because the model has no positions for them.
    """

    candidates: tuple[Candidate, ...]
    cut: int = 0

    @property
    def best(self) -> Candidate:
        """The candidate of the highest score."""
        return self.candidates[0]


NOTHING = Candidate(np.zeros(0, np.int32), 0.0, np.zeros(0, np.float32))


def translate(
    params: Params,
    cfg_model: ModelConfig,
    cfg: SearchConfig,
    sources: Sequence[np.ndarray],
    *,
    rows: int = 64,
    tokens: int = 16384,
    progress: Callable[[int], None] | None = None,
) -> list[Translation]:
    """Translate sentences; one translation for each, in their order.

    An empty source has an empty translation and never reaches the device. Of a source that is longer than the model's
    positions, the beginning is translated, and `Translation.cut` says how much is missing. No result depends on the
    other sentences.

    Args:
      params: merged parameters.
      cfg_model: the model.
      cfg: the search.
      sources: token ids without the end symbol.
      rows: most sentences in a batch.
      tokens: most source tokens in a batch, padding counted.
      progress: called with the number of sentences done since the call before.

    Returns:
      Translations; where the model yields no number at all, an empty one of score -inf.
    """
    room = cfg_model.max_source - 1
    cuts = [max(0, len(source) - room) for source in sources]
    real = [i for i, source in enumerate(sources) if len(source) > 0]
    results = [Translation((NOTHING,))] * len(sources)
    if progress is not None and len(real) < len(sources):
        progress(len(sources) - len(real))
    plan = batches([len(sources[i]) - cuts[i] + 1 for i in real], rows=rows, tokens=tokens)
    for bucket, found in _in_flight(
        plan, lambda b: _run(params, cfg_model, cfg, [sources[real[i]] for i in b.indices], b)
    ):
        for row, i in enumerate(bucket.indices):
            results[real[i]] = Translation(_candidates(found, row), cuts[real[i]])
        if progress is not None:
            progress(len(bucket.indices))
    return results


@partial(jax.jit, static_argnames=("cfg_model", "cfg", "limit"))
def generate(
    params: Params, cfg_model: ModelConfig, cfg: SearchConfig, src: Array, max_lengths: Array, *, limit: int
) -> Hypotheses:
    """Encode one batch and search its translations; compiled once for each shape, `limit` and configuration.

    Args:
      params: merged parameters.
      cfg_model: the model.
      cfg: the search.
      src: [B, S] int32, with the end symbol, then PAD.
      max_lengths: [B] int32, most tokens before the end symbol.
      limit: L, length of the results in symbols.

    Returns:
      Hypotheses [B, W, L].
    """
    params = model.cast(params, cfg_model)
    memory = model.encode(params, cfg_model, src)

    def step(cache: Cache, last: Array) -> tuple[Array, Cache]:
        logits, _, cache = model.decode(params, cfg_model, memory, cache, last[:, None])
        return logits[:, 0], cache

    cache = model.start(params, cfg_model, memory, src.shape[0] * cfg.beam_size)
    return search(step, cfg, cache, max_lengths, limit=limit)


def _run(
    params: Params, cfg_model: ModelConfig, cfg: SearchConfig, sources: Sequence[np.ndarray], bucket: Bucket
) -> Hypotheses:
    """Start one batch. Rows without a sentence hold an end symbol alone and are done after one step."""
    longest = cfg_model.max_target - 1
    src = np.full((bucket.rows, bucket.width), PAD, np.int32)
    src[:, 0] = EOS
    max_lengths = np.zeros(bucket.rows, np.int32)
    for row, source in enumerate(sources):
        n = min(len(source), cfg_model.max_source - 1)
        src[row, :n], src[row, n] = source[:n], EOS
        max_lengths[row] = min(cfg.max_length(n + 1), longest)
    limit = min(cfg.max_length(bucket.width), longest) + 1
    return generate(params, cfg_model, cfg, jnp.asarray(src), jnp.asarray(max_lengths), limit=limit)


def _in_flight(plan: Sequence[Bucket], run: Callable[[Bucket], Hypotheses]) -> Iterator[tuple[Bucket, Hypotheses]]:
    """Start each batch before the results of the one before it are fetched, so that the device need not wait."""
    waiting: tuple[Bucket, Hypotheses] | None = None
    for bucket in plan:
        started = bucket, run(bucket)
        if waiting is not None:
            yield waiting[0], jax.device_get(waiting[1])
        waiting = started
    if waiting is not None:
        yield waiting[0], jax.device_get(waiting[1])


def _candidates(found: Hypotheses, row: int) -> tuple[Candidate, ...]:
    """The finished hypotheses of a row, on the host."""
    tokens, scores, token_scores = (np.asarray(x[row]) for x in (found.tokens, found.scores, found.token_scores))
    candidates = [
        Candidate(tokens[w, : n - 1], float(scores[w]), token_scores[w, :n])
        for w, n in enumerate(np.asarray(found.lengths[row]))
        if n > 0
    ]
    return tuple(candidates) or (Candidate(NOTHING.tokens, float("-inf"), NOTHING.token_scores),)
