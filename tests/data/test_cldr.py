"""The corpus of phrases: its splits, its kinds, what is refused."""

import re
from datetime import date, time
from decimal import Decimal
from random import Random

import pytest
from babel import Locale

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import cldr
from convs2s_jax.data.cldr import PHRASES, CldrConfig, generate

LOCALES = ("en", "de", "ja", "fr", "ru", "ar", "zh_Hant", "pt_BR", "hi", "tr")
SMALL = CldrConfig(train=1500, valid=150, test=150)
SPLITS = ("train", "valid", "test")


def drawn(kind, locales, count, seed=0):
    """The texts of `count` phrases of a kind, before anything is dropped."""
    rng = Random(seed)
    contents = [PHRASES[kind](rng) for _ in range(count)]
    return [tuple(content(Locale.parse(locale)) for locale in locales) for content in contents]


def one_kind(text_of):
    """A kind of phrases whose text is the same in all locales."""

    def kind(rng):
        text = text_of(rng)
        return lambda _: text

    return {"toy": kind}


@pytest.fixture(scope="module")
def corpus():
    return generate("en", "de", SMALL)


def pairs_of(split):
    return set(zip(*split, strict=True))


def test_a_seed_gives_one_corpus_of_the_sizes_asked_for(corpus):
    """In whatever order its splits are asked for, however the locales are written, and however large train is."""
    made = generate("EN", "de", SMALL)
    assert all(made[name] == corpus[name] for name in ("test", "train", "valid"))
    assert [len(pairs_of(corpus[name])) for name in SPLITS] == [1500, 150, 150]
    other = generate("en", "de", CldrConfig(train=1500, valid=150, test=150, seed=2))
    assert len(pairs_of(other["train"]) & pairs_of(corpus["train"])) < 150
    for side in (0, 1):
        texts = [text for name in SPLITS for text in corpus[name][side]]
        assert len(texts) == len(set(texts))
    grown = generate("en", "de", CldrConfig(train=4000, valid=170, test=150))
    assert grown["test"] == corpus["test"]
    for side in (0, 1):
        assert grown["valid"][side][:150] == corpus["valid"][side]
        assert grown["train"][side][:1500] == corpus["train"][side]


@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("ja", "en")])
def test_a_source_tells_all_that_its_target_shows(src, tgt):
    """Nothing needs to be dropped for ambiguity: a model could know every answer."""
    targets = {}
    for kind in PHRASES:
        for source, target in drawn(kind, (src, tgt), 400):
            assert targets.setdefault(source, target) == target, (kind, source)


def test_no_test_pair_is_trained_on_with_another_seed(corpus):
    """One kind with few phrases, so that two seeds surely draw the same ones."""
    few = {"calendar_date": PHRASES["calendar_date"]}
    one, two = (
        generate("en", "de", CldrConfig(train=20_000, valid=1, test=1000, seed=seed), phrases=few) for seed in (1, 2)
    )
    assert pairs_of(one["test"]) & pairs_of(two["test"])
    assert not pairs_of(one["train"]) & pairs_of(two["test"])


def test_the_splits_are_the_same_on_every_machine():
    """Pinned: if this moves, every corpus is cut anew, and old models have seen the new test; say so in CHANGELOG."""
    sizes = CldrConfig(train=60, valid=4, test=4)
    made = generate("en", "de", sizes, phrases=one_kind(lambda rng: f"{rng.randrange(100)}"))
    assert set(made["valid"][0]) == {"28", "66", "7", "71"}
    assert set(made["test"][0]) == {"37", "46", "47", "83"}


@pytest.mark.parametrize("kind", PHRASES)
def test_each_kind_is_written_in_every_locale(kind):
    for locale in LOCALES:
        for (text,) in drawn(kind, (locale,), 20):
            assert text == text.strip()
            assert len(text.splitlines()) == 1
            assert not re.search(r"[a-z]-[a-z]+-|duration-|None|\{", text), "a code where a word should be"


@pytest.mark.parametrize(
    ("kind", "locale", "english", "text"),
    [
        ("calendar_date", "ja", "Tuesday, March 5, 2024", "2024年3月5日火曜日"),
        ("calendar_date", "ru", "March 5, 2024", "5 марта 2024 г."),
        ("day_period", "de", "Tue, Mar 5, 3:07 in the afternoon", "Di., 5. März, 3:07 nachm."),
        ("months", "de", "March 2024 or 1st quarter 2024", "März 2024 oder 1. Quartal 2024"),
        ("measurements", "ru", "1,234.5 kilometers", "1 234,5 километра"),
        ("money_names", "de", "1,234.00 euros", "1.234,00 Euro"),
        ("languages", "fr", "German and English", "allemand et anglais"),
    ],
)
def test_phrases_are_what_cldr_says(kind, locale, english, text, monkeypatch):
    """In a small world, where each kind has a handful of contents, so that the ones named here are drawn."""
    fixed = {"_day": date(2024, 3, 5), "_clock": time(15, 7), "_number": Decimal("1234.5"), "_money": Decimal(1234)}
    for draw, value in fixed.items():
        monkeypatch.setattr(cldr, draw, lambda *_, value=value: value)
    for name, codes in {
        "UNITS": ("length-kilometer", "mass-gram", "power-watt"),
        "CURRENCIES": ("EUR", "USD"),
        "TERRITORIES": ("DE", "US", "FR", "JP"),
        "LANGUAGES": ("de", "en", "fr", "ja"),
    }.items():
        monkeypatch.setattr(cldr, name, codes)
    plain = {re.sub(r"\s", " ", source): target for source, target in drawn(kind, ("en", locale), 400)}
    assert re.sub(r"\s", " ", plain[english]) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: generate("en", "de_DEE", SMALL), "tgt_locale is 'de_DEE': CLDR does not have this .* mean 'de_DE'"),
        (lambda: generate("qqqqqqq", "de", SMALL), "src_locale is 'qqqqqqq': .*; use an identifier such as de or"),
        (lambda: generate("en", "zh_Latn_CN", SMALL)["train"], "locale 'zh_Latn_CN' has no words for day_period in"),
        (lambda: CldrConfig(valid=0), "valid is 0: the built-in corpus needs a pair in each split; use 1 or more"),
        (
            lambda: generate("en", "de", SMALL, phrases=one_kind(lambda rng: f"{rng.randrange(40)}"))["train"],
            r"corpus en-de has only train \d+, valid \d+, test \d+ pairs: use smaller",
        ),
    ],
    ids=["misspelt", "unknown", "no words", "size", "too few"],
)
def test_what_there_is_not_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
