"""The corpus of phrases: its splits, its kinds, what is refused; German by itself is in test_cldr_german."""

import itertools
import re
from datetime import date, time
from decimal import Decimal

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.cldr import PHRASES, CldrConfig, generate, names, phrases
from tests.data.cldr_phrases import drawn
from tests.helpers import drills_but

SMALL = CldrConfig(train=1500, valid=150, test=150)

KINDS = [
    "calendar_date",
    "date_time",
    "log_time",
    "day_period",
    "date_interval",
    "months",
    "opening_hours",
    "relative_time",
    "duration",
    "measurements",
    "rate",
    "price",
    "budget",
    "money_names",
    "statistic",
    "numbers",
    "territories",
    "languages",
]


@pytest.fixture(scope="module")
def corpus():
    return generate("en", "de", SMALL)


def pairs_of(split):
    return set(zip(*split, strict=True))


def test_same_seed_same_corpus(corpus):
    assert generate("en", "de", SMALL) == corpus


def test_another_seed_another_corpus(corpus):
    other = generate("en", "de", CldrConfig(train=1500, valid=150, test=150, seed=2))
    assert len(pairs_of(other["train"]) & pairs_of(corpus["train"])) < 150


def test_what_is_asked_for_is_given(corpus):
    assert {name: (len(src), len(tgt)) for name, (src, tgt) in corpus.items()} == {
        "train": (1500, 1500),
        "valid": (150, 150),
        "test": (150, 150),
    }


@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("de", "en"), ("ja", "fr"), ("en", "en_GB")])
def test_no_text_occurs_twice_on_either_side(src, tgt):
    splits = generate(src, tgt, SMALL).values()
    for side in (0, 1):
        texts = [text for split in splits for text in split[side]]
        assert len(texts) == len(set(texts)) == 1800


def test_one_source_has_one_target():
    """Of contents that the source writes alike, the first drawn wins; so, too, of those the target writes alike."""
    content = {"en": 0, "de": 1}
    drawn_pairs = []

    def toy(rng):
        pair = (f"s{rng.randrange(900)}", f"t{rng.randrange(900)}")
        drawn_pairs.append(pair)
        return lambda locale: pair[content[locale.language]]

    made = dict(generate("en", "de", CldrConfig(train=100, valid=5, test=5), phrases={"toy": toy}))
    first_target, first_source = {}, {}
    for source, target in drawn_pairs:
        if source not in first_target and target not in first_source:
            first_target[source], first_source[target] = target, source
    kept = [pair for split in made.values() for pair in pairs_of(split)]
    assert len(dict(kept)) == len({target for _, target in kept}) == 110
    assert all(first_target[source] == target for source, target in kept)


@pytest.mark.parametrize(
    ("src", "tgt"),
    drills_but(
        [("en", "de"), ("de", "en"), ("ja", "en"), ("fr", "ru"), ("zh_Hant", "ar")], kept=[("en", "de"), ("ja", "en")]
    ),
)
def test_a_source_tells_all_that_its_target_shows(src, tgt):
    """Nothing needs to be dropped for ambiguity: a model could know every answer."""
    targets = {}
    for kind in PHRASES:
        for source, target in drawn(kind, (src, tgt), 400):
            assert targets.setdefault(source, target) == target, (kind, source)


def test_valid_and_test_stay_when_train_grows(corpus):
    grown = generate("en", "de", CldrConfig(train=4000, valid=170, test=150))
    assert grown["test"] == corpus["test"]
    for side in (0, 1):
        assert grown["valid"][side][:150] == corpus["valid"][side]
        assert grown["train"][side][:1500] == corpus["train"][side]


def test_the_order_in_which_splits_are_asked_for_changes_nothing(corpus):
    made = generate("en", "de", SMALL)
    assert {name: made[name] for name in ("test", "train", "valid")} == dict(corpus)


def test_a_split_alone_is_made_from_no_more_phrases_than_it_needs():
    """Cutting all splits at once drew phrases until the largest was full; one in 16 drawn is a test pair."""

    def phrases_drawn(split):
        count = itertools.count()

        def numbered(rng):
            text = f"{next(count)}"
            return lambda _: text

        generate("en", "de", CldrConfig(train=4000, valid=20, test=20), phrases={"numbered": numbered})[split]
        return next(count)

    assert phrases_drawn("test") < 20 * 16 * 2
    assert phrases_drawn("train") >= 4000


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

    def count(rng):
        text = f"{rng.randrange(100)}"
        return lambda _: text

    made = generate("en", "de", CldrConfig(train=60, valid=4, test=4), phrases={"count": count})
    assert set(made["valid"][0]) == {"28", "66", "7", "71"}
    assert set(made["test"][0]) == {"37", "46", "47", "83"}


def test_the_table_names_every_kind():
    assert list(PHRASES) == KINDS
    assert all(PHRASES[kind].__name__ == kind for kind in KINDS)


@pytest.mark.parametrize("locale", ["en", "de", "ja", "fr", "ru", "ar", "zh_Hant", "pt_BR", "hi", "tr"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_in_every_locale(kind, locale):
    for (text,) in drawn(kind, (locale,), 30):
        assert text == text.strip()
        assert len(text.splitlines()) == 1
        assert not re.search(r"[a-z]-[a-z]+-|duration-|None|\{", text), "a code where a word should be"


def test_each_kind_is_drawn_as_often_as_the_others():
    seen = []
    counted = {kind: (lambda rng, kind=kind: seen.append(kind) or PHRASES[kind](rng)) for kind in KINDS}
    dict(generate("en", "de", SMALL, phrases=counted))
    mean = len(seen) / len(KINDS)
    assert all(0.6 * mean < seen.count(kind) < 1.4 * mean for kind in KINDS)


def test_opening_hours_open_before_they_close():
    for (text,) in drawn("opening_hours", ("en",), 200):
        opens, closes = re.findall(r"\d\d:\d\d", text)
        assert opens < closes


def test_shares_keep_their_decimals():
    shares = [re.search(r"([\d.]+)%", text)[1] for (text,) in drawn("price", ("en",), 200)]
    assert sum("." in share for share in shares) > 150


def test_currencies_without_cents_have_whole_amounts(monkeypatch):
    """1.45 won would be written as 1, in the plural."""
    monkeypatch.setattr(names, "CURRENCIES", ("KRW", "JPY"))
    targets = {}
    for source, target in drawn("money_names", ("fr", "de"), 2000):
        assert targets.setdefault(source, target) == target


@pytest.mark.parametrize(
    ("kind", "locale", "english", "text"),
    [
        ("calendar_date", "de", "March 5, 2024", "5. März 2024"),
        ("calendar_date", "fr", "Tuesday, March 5, 2024", "mardi 5 mars 2024"),
        ("calendar_date", "ja", "Tuesday, March 5, 2024", "2024年3月5日火曜日"),
        ("calendar_date", "ru", "March 5, 2024", "5 марта 2024 г."),
        ("date_time", "de", "March 5, 2024, 3:07 PM", "5. März 2024, 15:07"),
        ("day_period", "de", "Tue, Mar 5, 3:07 in the afternoon", "Di., 5. März, 3:07 nachm."),
        ("months", "de", "March 2024 or 1st quarter 2024", "März 2024 oder 1. Quartal 2024"),
        ("months", "de", "March 2024 and 1st quarter 2024", "März 2024 und 1. Quartal 2024"),
        ("measurements", "de", "1,234.5 kilometers", "1.234,5 Kilometer"),
        ("measurements", "ru", "1,234.5 kilometers", "1 234,5 километра"),
        ("rate", "fr", "1,234.5 km/h", "1 234,5 km/h"),
        ("money_names", "de", "1,234.00 euros", "1.234,00 Euro"),
        ("territories", "de", "Germany or United States", "Deutschland oder Vereinigte Staaten"),
        ("territories", "ja", "United States and Germany", "アメリカ合衆国、ドイツ"),
        ("languages", "fr", "German and English", "allemand et anglais"),
    ],
)
def test_phrases_are_what_cldr_says(kind, locale, english, text, monkeypatch):
    """In a small world, where each kind has a handful of contents, so that the ones named here are drawn."""
    fixed = {"_day": date(2024, 3, 5), "_clock": time(15, 7), "_number": Decimal("1234.5"), "_money": Decimal(1234)}
    for draw, value in fixed.items():
        monkeypatch.setattr(phrases, draw, lambda *_, value=value: value)
    monkeypatch.setattr(names, "UNITS", ("length-kilometer", "mass-gram", "power-watt"))
    monkeypatch.setattr(names, "CURRENCIES", ("EUR", "USD"))
    for pool, codes in (("TERRITORIES", ("DE", "US", "FR", "JP")), ("LANGUAGES", ("de", "en", "fr", "ja"))):
        monkeypatch.setattr(names, pool, codes)
    plain = {re.sub(r"\s", " ", source): target for source, target in drawn(kind, ("en", locale), 400)}
    assert re.sub(r"\s", " ", plain[english]) == text


def test_non_breaking_spaces_are_kept():
    assert any("\N{NO-BREAK SPACE}%" in text for (text,) in drawn("price", ("de",), 20))
    assert any("\N{NARROW NO-BREAK SPACE}" in text for (text,) in drawn("measurements", ("fr",), 20))


@pytest.mark.parametrize(
    ("name", "near"), [("de_DEE", "de_DE"), ("german", "de"), ("germn", "de"), ("pt_BRR", "pt_BR"), ("japanese", "ja")]
)
def test_a_misspelt_locale_is_answered_with_the_nearest(name, near):
    message = f"tgt_locale is '{name}': CLDR does not have this locale; did you mean '{near}'?"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        generate("en", name, SMALL)


def test_locales_may_be_written_with_a_hyphen_and_in_any_case():
    tiny = CldrConfig(train=10, valid=1, test=1)
    assert generate("EN", "zh-hant", tiny) == generate("en", "zh_Hant", tiny)


def test_a_locale_without_words_for_a_kind_is_refused():
    with pytest.raises(UserError, match="locale 'zh_Latn_CN' has no words for day_period in CLDR: use another locale"):
        dict(generate("en", "zh_Latn_CN", SMALL))


@pytest.mark.parametrize("field", ["train", "valid", "test"])
def test_an_empty_split_is_refused(field):
    with pytest.raises(UserError, match=f"{field} is 0: the built-in corpus needs a pair in each split; use 1 or more"):
        CldrConfig(**{field: 0})


def test_more_than_there_is_is_refused():
    def digit(rng):
        text = f"{rng.randrange(40)}"
        return lambda _: text

    with pytest.raises(UserError, match=r"corpus en-de has only train \d+, valid \d+, test \d+ pairs: use smaller"):
        dict(generate("en", "de", CldrConfig(train=50, valid=1, test=1), phrases={"digit": digit}))
