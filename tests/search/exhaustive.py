"""Search by listing everything, and fairseq's beam search in lists and loops: the references of test_beam.py.

Plain Python in float64; written from the description of the procedure, sharing nothing with the package but the
options and the numbers of the special symbols.
"""

import itertools
import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.tokens import EOS, PAD, UNK
from convs2s_jax.search import beam
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.options import search_options


@dataclass
class Found:
    """One finished hypothesis."""

    tokens: tuple[int, ...]  # with the end symbol
    score: float
    token_scores: list[float]


def trigram_table(seed: int, vocab: int, sharpness: float = 1.5) -> np.ndarray:
    """Logits [V, V, V] of the next symbol given the symbol before the last and the last."""
    return np.random.default_rng(seed).normal(0.0, sharpness, (vocab, vocab, vocab)).astype(np.float32)


ATTENTION = np.random.default_rng(7).dirichlet([0.5] * 3, 8).astype(np.float32)
"""What a step attends to on three source positions, by the symbol it reads."""


@dataclass(frozen=True)
class CompileRequest:
    """Demands on one sentence."""

    prefix: tuple[int, ...] = ()
    phrases: tuple[tuple[int, ...], ...] = ()


def sharper(time):
    """Logits grow with time, so that two orders of the same trigrams do not score alike."""
    return 1 + 0.1 * time


def trigram_step(tables):
    """p(token | two last tokens, time): the older token lives in the cache, so the order of the rows counts.

    `tables` [G, V, V, V] are the sentences' languages; a row of the cache holds language, older token and time.
    """

    def step(memory, cache, last):
        language, older, time = cache["language"], cache["older"], cache["time"]
        logits = jnp.asarray(tables)[language, older, last] * sharper(time)[:, None]
        got = cache["got"] + jnp.asarray(ATTENTION, logits.dtype)[last % len(ATTENTION)]
        return logits, {"language": language, "older": last, "time": time + 1, "got": got}

    return step


def trigram_cache(languages, beam_size: int, dtype=jnp.float32):
    """The cache before the start symbol, whose older neighbour is EOS as well."""
    rows = jnp.repeat(jnp.asarray(languages, jnp.int32), beam_size)
    return {
        "language": rows,
        "older": jnp.full_like(rows, EOS),
        "time": jnp.zeros(len(rows), dtype),
        "got": jnp.zeros((len(rows), ATTENTION.shape[1]), dtype),
    }


def search(step, cfg, memory, cache, asked, **more):
    """`beam_search`, compiled."""
    run = jax.jit(partial(beam.beam_search, step, cfg, **more))
    return jax.device_get(run(memory=memory, cache=cache, request=asked))


@partial(jax.jit, static_argnames=("strategy", "limit", "fixed_length"))
def compiled(tables, languages, asked, options, *, limit, strategy=None, fixed_length=False):
    """A search of the trigram models: one program for all tables and numbers."""
    more = {"strategy": strategy, "limit": limit, "fixed_length": fixed_length, "coverage": trigram_coverage}
    cache = trigram_cache(languages, options.beam_size, tables.dtype)
    return beam.beam_search(trigram_step(tables), options, memory=(), cache=cache, request=asked, **more)


def toy_search(tables, cfg, asked, *, limit, languages=None, **more):
    """The hypotheses that `beam_search` finds for sentences of the trigram models."""
    languages = np.asarray(np.arange(len(tables)) if languages is None else languages, np.int32)
    found = compiled(np.asarray(tables), languages, asked, search_options(cfg), limit=limit, **more)
    return jax.device_get(found)  # slices of arrays on a device are programs of their own


def hypotheses(result, b):
    """The finished hypotheses of sentence b: (tokens, score, token scores)."""
    lengths = np.asarray(result.lengths[b])
    for w, n in enumerate(lengths):
        assert (np.asarray(result.tokens[b, w, n:]) == PAD).all()
        assert (np.asarray(result.token_scores[b, w, n:]) == 0).all()
        assert (n > 0) == np.isfinite(result.scores[b, w])
    return [
        (tuple(np.asarray(result.tokens[b, w, :n]).tolist()), float(result.scores[b, w]), result.token_scores[b, w, :n])
        for w, n in enumerate(lengths)
        if n > 0
    ]


def assert_same(found, expected, rtol=1e-5):
    """The same hypotheses as a reference's, in the same order, with the same scores."""
    assert [tokens for tokens, _, _ in found] == [e.tokens for e in expected]
    for (_, score, token_scores), e in zip(found, expected, strict=True):
        np.testing.assert_allclose(score, e.score, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(token_scores, e.token_scores, rtol=rtol, atol=2 * rtol)


def trigram_coverage(memory, cache):
    """What source positions lack of a whole attention, as `search` wants it."""
    return jnp.sum(jnp.log(jnp.minimum(cache["got"], 1)), axis=-1)


def symbol_scores(
    table: np.ndarray,
    cfg: SearchConfig,
    prefix: tuple[int, ...],
    max_length: int,
    wanted: CompileRequest = CompileRequest(),
) -> np.ndarray:
    """What each next symbol adds to the score of `prefix` (without start symbol), in nats."""
    history = (EOS, EOS, *prefix)
    scores = log_softmax(table, history, cfg, len(prefix))
    scores[np.isnan(scores)] = -math.inf
    scores[PAD] = -math.inf
    scores[UNK] -= cfg.unk_penalty
    if len(prefix) < len(wanted.prefix):
        scores[[v for v in range(len(scores)) if v != wanted.prefix[len(prefix)]]] = -math.inf
        return scores
    if len(prefix) >= max_length:
        scores[[v for v in range(len(scores)) if v != EOS]] = -math.inf
    elif len(prefix) < cfg.min_length:
        scores[EOS] = -math.inf
    for v in range(len(scores)):
        if cfg.no_repeat_ngram and (*prefix, v)[-cfg.no_repeat_ngram :] in ngrams(prefix, cfg.no_repeat_ngram):
            scores[v] = -math.inf
    if not all(phrase in ngrams(prefix, len(phrase)) for phrase in wanted.phrases):
        scores[EOS] = -math.inf
    return scores


def log_softmax(table: np.ndarray, history: tuple[int, ...], cfg: SearchConfig, time: int) -> np.ndarray:
    """Of one table [V, V, V], or the log of the mean probability of several [M, V, V, V].

    Of a pair, a model's and a language model's: log p + lm_weight log p_lm.
    """
    if isinstance(table, tuple):
        return log_softmax(table[0], history, cfg, time) + cfg.lm_weight * log_softmax(table[1], history, cfg, time)
    if table.ndim == 4:
        return np.log(np.mean([np.exp(log_softmax(member, history, cfg, time)) for member in table], axis=0))
    logits = table[history[-2], history[-1]].astype(np.float64) * sharper(time) / cfg.temperature
    return logits - logits.max() - math.log(sum(math.exp(x - logits.max()) for x in logits))


def ngrams(tokens: tuple[int, ...], n: int) -> list[tuple[int, ...]]:
    return [tokens[i : i + n] for i in range(len(tokens) - n + 1)]


def rank(found: list[Found]) -> list[Found]:
    return sorted(found, key=lambda f: -f.score)


def _found(cfg: SearchConfig, tokens: tuple[int, ...], token_scores: list[float]) -> Found:
    total, length = sum(token_scores), len(tokens)
    if cfg.normalize:
        base = (5 + length) / 6 if cfg.length_penalty_kind == "gnmt" else length
        total /= base**cfg.length_penalty
    read = ATTENTION[[v % len(ATTENTION) for v in (EOS, *tokens[:-1])]].astype(np.float64).sum(axis=0)
    return Found(tokens, total + cfg.coverage_penalty * float(np.log(np.minimum(read, 1)).sum()), token_scores)


def exhaustive(
    table: np.ndarray, cfg: SearchConfig, max_length: int, wanted: CompileRequest = CompileRequest()
) -> list[Found]:
    """Every hypothesis of at most `max_length` tokens before the end symbol, best first."""
    found = []
    symbols = [v for v in range(np.shape(table)[-1]) if v not in (PAD, EOS)]
    for length in range(max_length + 1):
        for words in itertools.product(symbols, repeat=length):
            tokens = (*words, EOS)
            scores = [float(symbol_scores(table, cfg, tokens[:i], max_length, wanted)[v]) for i, v in enumerate(tokens)]
            if min(scores) > -math.inf:
                found.append(_found(cfg, tokens, scores))
    return rank(found)


def beam_search(table: np.ndarray, cfg: SearchConfig, max_length: int, *, patience: bool = False) -> list[Found]:
    """fairseq's beam search for one sentence.

    With `patience` nothing stops it before the longest allowed length and the best W are returned: what an exact
    stopping rule has to reproduce.
    """
    W = cfg.beam_size
    live: list[tuple[tuple[int, ...], list[float]]] = [((), [])]
    found: list[Found] = []
    for _ in range(max_length + 1):
        candidates = []
        for tokens, token_scores in live:
            for v, score in enumerate(symbol_scores(table, cfg, tokens, max_length)):
                if score > -math.inf:
                    candidates.append(((*tokens, v), [*token_scores, float(score)]))
        candidates.sort(key=lambda c: -sum(c[1]))
        candidates = candidates[: 2 * W]
        found += [_found(cfg, *c) for c in candidates[:W] if c[0][-1] == EOS]
        if len(found) >= W and not patience:
            return rank(found[:W])
        live = [c for c in candidates if c[0][-1] != EOS][:W]
    return rank(found)[:W]
