"""Search by listing everything, and fairseq's beam search in lists and loops: the references of test_beam.py.

Plain Python in float64; written from the description of the procedure, sharing nothing with the package but the
options and the numbers of the special symbols.
"""

import itertools
import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.tokens import EOS, PAD, UNK
from convs2s_jax.search.config import SearchConfig


@dataclass
class Found:
    """One finished hypothesis."""

    tokens: tuple[int, ...]  # with the end symbol
    score: float
    token_scores: list[float]


def trigram_table(seed: int, vocab: int, sharpness: float = 1.5) -> np.ndarray:
    """Logits [V, V, V] of the next symbol given the symbol before the last and the last."""
    return np.random.default_rng(seed).normal(0.0, sharpness, (vocab, vocab, vocab)).astype(np.float32)


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
        return logits, {"language": language, "older": last, "time": time + 1}

    return step


def trigram_cache(languages, beam_size: int):
    """The cache before the start symbol, whose older neighbour is EOS as well."""
    rows = jnp.repeat(jnp.asarray(languages, jnp.int32), beam_size)
    return {"language": rows, "older": jnp.full_like(rows, EOS), "time": jnp.zeros(len(rows), jnp.float32)}


def symbol_scores(table: np.ndarray, cfg: SearchConfig, prefix: tuple[int, ...], max_length: int) -> np.ndarray:
    """What each next symbol adds to the score of `prefix` (without start symbol), in nats."""
    history = (EOS, EOS, *prefix)
    logits = table[history[-2], history[-1]].astype(np.float64) * sharper(len(prefix)) / cfg.temperature
    scores = logits - logits.max() - math.log(sum(math.exp(x - logits.max()) for x in logits))
    scores[np.isnan(scores)] = -math.inf
    scores[PAD] = -math.inf
    scores[UNK] -= cfg.unk_penalty
    if len(prefix) >= max_length:
        scores[[v for v in range(len(scores)) if v != EOS]] = -math.inf
    elif len(prefix) < cfg.min_length:
        scores[EOS] = -math.inf
    return scores


def rank(found: list[Found]) -> list[Found]:
    return sorted(found, key=lambda f: -f.score)


def _found(cfg: SearchConfig, tokens: tuple[int, ...], token_scores: list[float]) -> Found:
    total = sum(token_scores)
    score = total / len(tokens) ** cfg.length_penalty if cfg.normalize else total
    return Found(tokens, score, token_scores)


def exhaustive(table: np.ndarray, cfg: SearchConfig, max_length: int) -> list[Found]:
    """Every hypothesis of at most `max_length` tokens before the end symbol, best first."""
    found = []
    symbols = [v for v in range(len(table)) if v not in (PAD, EOS)]
    for length in range(max_length + 1):
        for words in itertools.product(symbols, repeat=length):
            tokens = (*words, EOS)
            scores = [float(symbol_scores(table, cfg, tokens[:i], max_length)[v]) for i, v in enumerate(tokens)]
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
