"""The built-in corpus: parallel phrases generated from Unicode CLDR, in any two locales, without a download.

Operating systems and browsers use CLDR to format dates, times, numbers, units, currencies, lists, and the names of
countries and languages. The Babel library contains it for several hundred locales. The content of a phrase is sampled
once, independent of language ("5 March 2024, full style"), and written in both locales. So every source has exactly one
correct translation, and exact match is as good a score as BLEU. The task is real localisation (word order, plurals,
cases, decimal commas, 12-hour and 24-hour clocks), but not free text.

`phrases` defines the kinds of phrases; `corpus` generates train, valid and test from them.
"""

from convs2s_jax.data.cldr.corpus import CldrConfig, generate, generate_kinds
from convs2s_jax.data.cldr.phrases import PHRASES, Phrase

__all__ = ["PHRASES", "CldrConfig", "Phrase", "generate", "generate_kinds"]
