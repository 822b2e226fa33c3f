"""The training text in the segmentation of an epoch (`data.subword_sampling`)."""

import dataclasses
from collections.abc import Sequence

from convs2s_jax.core.config import check
from convs2s_jax.data import segmentation
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.segmentation import Segmenter
from convs2s_jax.data.store import TokenStore
from convs2s_jax.data.vocabulary import Vocabularies, Vocabulary
from convs2s_jax.training.run.inputs.dataset import Split


def check_vocabularies(cfg: DataConfig, vocabularies: Vocabularies) -> None:
    """Raise UserError if the segmentation is to be sampled, but neither vocabulary can segment text in several ways."""
    sides = (vocabularies.src, vocabularies.tgt)
    check(
        not cfg.subword_sampling or any(isinstance(one, Segmenter) and one.divides_words for one in sides),
        f"data.subword_sampling is {cfg.subword_sampling}, but the vocabularies consist of whole words: set it to 0, "
        "or data.vocabulary.kind to bpe or unigram",
    )


def of_epoch(
    cfg: DataConfig, train: Split, vocabularies: Vocabularies, *, seed: int, epoch: int, longest: tuple[int, int]
) -> Split:
    """Return the training data of an epoch: unchanged, or in a random segmentation that the arguments determine.

    A sentence whose random segmentation is too long keeps its best one. Labels and word lists are never resegmented.

    Args:
      cfg: `subword_sampling` is used.
      train: in the best segmentation, with its lines.
      vocabularies: of both sides.
      seed: of the run.
      epoch: from 1.
      longest: maximum number of tokens of a source and a target, end symbols included.
    """
    if not cfg.subword_sampling:
        return train

    def drawn(side: int, texts: Sequence[str], vocabulary: Vocabulary, best: TokenStore) -> TokenStore:
        if not isinstance(vocabulary, Segmenter):
            return best
        found = segmentation.draw(texts, vocabulary, rate=cfg.subword_sampling, seed=(seed, epoch, side))
        cut_anyway = side == 0 and train.longest is not None and longest[0] >= train.longest
        return found if cut_anyway else segmentation.within(found, best, longest[side])

    return dataclasses.replace(
        train,
        src=drawn(0, train.text.src, vocabularies.src, train.src),
        tgt=drawn(1, train.text.tgt, vocabularies.tgt, train.tgt),
    )
