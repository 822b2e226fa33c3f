"""The built-in corpus: parallel phrases made from Unicode CLDR, in any two locales, without a download.

CLDR is the data from which operating systems and browsers write dates, times, numbers, units, currencies, lists and
the names of countries and languages; the Babel library carries it for several hundred locales. A phrase is drawn once,
without a language ("5 March 2024, full style"), and written in both locales, so a translation is exact: there is one
right answer, and exact match is as good a score as BLEU. It is real localisation work (word order, plurals, cases,
decimal commas, 12 and 24 hours), though no free language.

`phrases` holds the kinds of phrase, `corpus` makes train, valid and test out of them.
"""

from convs2s_jax.data.cldr.corpus import CldrConfig, generate, generate_kinds
from convs2s_jax.data.cldr.phrases import PHRASES, Phrase

__all__ = ["PHRASES", "CldrConfig", "Phrase", "generate", "generate_kinds"]
