"""Phrases of one kind, for the tests of their texts."""

from random import Random

from babel import Locale

from convs2s_jax.data.cldr import PHRASES


def drawn(kind, locales, count, seed=0):
    """The texts of `count` phrases of a kind, before anything is dropped."""
    rng = Random(seed)
    contents = [PHRASES[kind](rng) for _ in range(count)]
    return [tuple(content(Locale.parse(locale)) for locale in locales) for content in contents]
