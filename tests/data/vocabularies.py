"""Texts and kinds of vocabularies for the tests of vocabularies."""

from convs2s_jax.data import vocabulary
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.corpora import ParallelText

# Spaces and line ends of every kind, SentencePiece's own two characters, a digit, a character beyond 16 bits.
ODD = "a\u202fb\u00a0c\u2009d\u3000e\u2028f\x85g\th\ri\u2581j\u2585k\u200bl\u00adm7\U0001f600\ufffdn e\u0301 \u212b ﬁ"
SRC = [f"Der {i}. Hund läuft {i * 7 % 13} Meter über die Straße {ODD}" for i in range(60)]
TGT = [f"Dog no. {i} runs {i * 7 % 13} metres across the street {ODD}" for i in range(60)]
TEXT = ParallelText(SRC, TGT, "train")

CONFIGS = [
    VocabularyConfig(kind="bpe", src_size=120, tgt_size=110),
    VocabularyConfig(kind="bpe", src_size=160, joint=True, split_digits=True),
    VocabularyConfig(kind="unigram", src_size=62, tgt_size=53),
    VocabularyConfig(kind="words", src_size=30, tgt_size=25),
    VocabularyConfig(kind="words", src_size=40, joint=True),
]


def build(cfg, text=TEXT, seed=1):
    return vocabulary.build(cfg, text, seed)
