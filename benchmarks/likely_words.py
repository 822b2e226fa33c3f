"""Shortlists for decoding benchmarks."""

from collections.abc import Callable

import numpy as np

from convs2s_jax.data import parallel_text
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.tokens_on_disk import TokenizedText
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.translation import shortlists


def learner(cfg: DataConfig, vocabularies: Vocabularies) -> Callable[[int], Shortlist]:
    """Read the training text; return a function that learns a shortlist with a number of words per source word."""
    text = parallel_text.read(cfg, "train")
    sides = []
    for lines, side in ((text.src, vocabularies.src), (text.tgt, vocabularies.tgt)):
        ids = [np.asarray(line, np.int32) for line in side.encode(lines)]
        sides.append(TokenizedText(np.concatenate(ids), np.cumsum([0, *map(len, ids)])))

    def learn(words: int) -> Shortlist:
        return shortlists.learn(*sides, np.arange(len(text)), vocabularies, words=words, frequent=100, iterations=5)

    return learn
