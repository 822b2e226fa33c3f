"""The corpus of phrases: its splits, its kinds, German by grammar and calendar, what is refused."""

import itertools
import re
from datetime import date, datetime, time
from decimal import Decimal
from random import Random

import pytest
from babel import Locale

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.cldr import PHRASES, CldrConfig, generate, names, phrases

LOCALES = ("en", "de", "ja", "fr", "ru", "ar", "zh_Hant", "pt_BR", "hi", "tr")
SMALL = CldrConfig(train=1500, valid=150, test=150)


def drawn(kind, locales, count, seed=0):
    """The texts of `count` phrases of a kind, before anything is dropped."""
    rng = Random(seed)
    contents = [PHRASES[kind](rng) for _ in range(count)]
    return [tuple(content(Locale.parse(locale)) for locale in locales) for content in contents]


@pytest.fixture(scope="module")
def corpus():
    return generate("en", "de", SMALL)


def pairs_of(split):
    return set(zip(*split, strict=True))


def test_a_seed_gives_one_corpus_of_the_sizes_asked_for(corpus):
    """In whatever order its splits are asked for, however the locales are written, and however large train is."""
    made = generate("EN", "de", SMALL)
    assert {name: made[name] for name in ("test", "train", "valid")} == dict(corpus)
    assert {name: len(pairs_of(split)) for name, split in corpus.items()} == {"train": 1500, "valid": 150, "test": 150}
    other = generate("en", "de", CldrConfig(train=1500, valid=150, test=150, seed=2))
    assert len(pairs_of(other["train"]) & pairs_of(corpus["train"])) < 150
    grown = generate("en", "de", CldrConfig(train=4000, valid=170, test=150))
    assert grown["test"] == corpus["test"]
    for side in (0, 1):
        assert grown["valid"][side][:150] == corpus["valid"][side]
        assert grown["train"][side][:1500] == corpus["train"][side]


@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("ja", "fr"), ("en", "en_GB")])
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


@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("ja", "en")])
def test_a_source_tells_all_that_its_target_shows(src, tgt):
    """Nothing needs to be dropped for ambiguity: a model could know every answer."""
    targets = {}
    for kind in PHRASES:
        for source, target in drawn(kind, (src, tgt), 400):
            assert targets.setdefault(source, target) == target, (kind, source)


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


def test_each_kind_is_written_in_every_locale_and_drawn_as_often_as_the_others():
    for kind, locale in itertools.product(
        PHRASES, ("en", "de", "ja", "fr", "ru", "ar", "zh_Hant", "pt_BR", "hi", "tr")
    ):
        assert PHRASES[kind].__name__ == kind
        for (text,) in drawn(kind, (locale,), 20):
            assert text == text.strip()
            assert len(text.splitlines()) == 1
            assert not re.search(r"[a-z]-[a-z]+-|duration-|None|\{", text), "a code where a word should be"
    seen = []
    counted = {kind: (lambda rng, kind=kind: seen.append(kind) or PHRASES[kind](rng)) for kind in PHRASES}
    dict(generate("en", "de", SMALL, phrases=counted))
    mean = len(seen) / len(PHRASES)
    assert all(0.6 * mean < seen.count(kind) < 1.4 * mean for kind in PHRASES)


def test_contents_are_such_as_their_phrases_can_tell(monkeypatch):
    """Hours open before they close; shares keep their decimals; 1.45 won would be written as 1, in the plural."""
    for (text,) in drawn("opening_hours", ("en",), 200):
        opens, closes = re.findall(r"\d\d:\d\d", text)
        assert opens < closes
    shares = [re.search(r"([\d.]+)%", text)[1] for (text,) in drawn("price", ("en",), 200)]
    assert sum("." in share for share in shares) > 150
    assert any("\N{NO-BREAK SPACE}%" in text for (text,) in drawn("price", ("de",), 20))
    monkeypatch.setattr(names, "CURRENCIES", ("KRW", "JPY"))
    targets = {}
    for source, target in drawn("money_names", ("fr", "de"), 2000):
        assert targets.setdefault(source, target) == target


@pytest.mark.parametrize(
    ("kind", "locale", "english", "text"),
    [
        ("calendar_date", "de", "March 5, 2024", "5. März 2024"),
        ("calendar_date", "ja", "Tuesday, March 5, 2024", "2024年3月5日火曜日"),
        ("calendar_date", "ru", "March 5, 2024", "5 марта 2024 г."),
        ("date_time", "de", "March 5, 2024, 3:07 PM", "5. März 2024, 15:07"),
        ("day_period", "de", "Tue, Mar 5, 3:07 in the afternoon", "Di., 5. März, 3:07 nachm."),
        ("months", "de", "March 2024 or 1st quarter 2024", "März 2024 oder 1. Quartal 2024"),
        ("measurements", "ru", "1,234.5 kilometers", "1 234,5 километра"),
        ("rate", "fr", "1,234.5 km/h", "1 234,5 km/h"),
        ("money_names", "de", "1,234.00 euros", "1.234,00 Euro"),
        ("territories", "de", "Germany or United States", "Deutschland oder Vereinigte Staaten"),
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


@pytest.mark.parametrize(("name", "near"), [("de_DEE", "de_DE"), ("germn", "de"), ("japanese", "ja")])
def test_a_misspelt_locale_is_answered_with_the_nearest(name, near):
    message = f"tgt_locale is '{name}': CLDR does not have this locale; did you mean '{near}'?"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        generate("en", name, SMALL)


def test_what_there_is_not_is_refused():
    def digit(rng):
        text = f"{rng.randrange(40)}"
        return lambda _: text

    with pytest.raises(UserError, match="locale 'zh_Latn_CN' has no words for day_period in CLDR: use another locale"):
        dict(generate("en", "zh_Latn_CN", SMALL))
    with pytest.raises(UserError, match="valid is 0: the built-in corpus needs a pair in each split; use 1 or more"):
        CldrConfig(valid=0)
    with pytest.raises(UserError, match=r"corpus en-de has only train \d+, valid \d+, test \d+ pairs: use smaller"):
        dict(generate("en", "de", CldrConfig(train=50, valid=1, test=1), phrases={"digit": digit}))


# --- German, from tables written here by hand

GERMAN_MONTHS = """Januar Februar März April Mai Juni Juli August September Oktober November Dezember""".split()  # noqa: SIM905
GERMAN_DAYS = """Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag""".split()  # noqa: SIM905
GERMAN_PAST = {
    "second": ("Sekunde", "Sekunden"),
    "minute": ("Minute", "Minuten"),
    "hour": ("Stunde", "Stunden"),
    "day": ("Tag", "Tagen"),
    "week": ("Woche", "Wochen"),
    "month": ("Monat", "Monaten"),
    "year": ("Jahr", "Jahren"),
}


def german_date(english):
    """Translate an English date without CLDR; its weekday comes from the calendar."""
    if "/" in english:
        month, day, year = english.split("/")
        return f"{day}.{month}.{year}"
    day = datetime.strptime(english.split(", ", 1)[1] if english.count(",") == 2 else english, "%B %d, %Y")
    weekday = f"{GERMAN_DAYS[day.weekday()]}, " if english.count(",") == 2 else ""
    return f"{weekday}{day.day}. {GERMAN_MONTHS[day.month - 1]} {day.year}"


def german_number(english):
    return english.translate(str.maketrans(",.", ".,")).replace("%", "\N{NO-BREAK SPACE}%")


def german_list(english):
    for separator, word in ((" and ", " und "), (" or ", " oder ")):
        *head, last = re.split(f",?{separator}", english)
        if head:
            return ", ".join(german_number(item) for item in head[0].split(", ")) + word + german_number(last)
    raise ValueError(english)


def test_german_dates_agree_with_the_calendar():
    for english, german in drawn("calendar_date", ("en", "de"), 500):
        assert german == german_date(english)


def test_german_relative_times_have_their_cases():
    amounts = {}
    for english, german in drawn("relative_time", ("en", "de"), 4000):
        day, amount, unit, ago = re.fullmatch(r"(.*) \((?:in )?(\d+) (\w+?)s?( ago)?\)", english).groups()
        past = "vor" if ago else "in"
        assert german == f"{german_date(day)} ({past} {amount} {GERMAN_PAST[unit][amount != '1']})"
        amounts.setdefault((past, unit), set()).add(int(amount))
    for past in ("vor", "in"):
        most = {unit: max(amounts[past, unit]) for unit in GERMAN_PAST}
        assert most == {"second": 59, "minute": 59, "hour": 23, "day": 6, "week": 4, "month": 11, "year": 60}


def test_german_numbers_swap_comma_and_point():
    for english, german in drawn("numbers", ("en", "de"), 500):
        assert german == german_list(english)


def test_german_clock_has_24_hours():
    for english, german in drawn("log_time", ("en", "de"), 300):
        day, clock = english.replace("\N{NARROW NO-BREAK SPACE}", " ").split(", ")
        assert german == f"{german_date(day)}, {datetime.strptime(clock, '%I:%M:%S %p'):%H:%M:%S}"


LEAST = {"date_interval": 3, "months": 2, "opening_hours": 4, "duration": 2, "measurements": 1, "rate": 1, "price": 2}


@pytest.mark.parametrize("kind", [*LEAST, "budget", "money_names", "statistic"])
def test_german_numbers_are_the_english_ones(kind):
    for english, german in drawn(kind, ("en", "de"), 200):
        assert len(re.findall(r"\d+", english)) >= LEAST.get(kind, 1)
        assert sorted(re.findall(r"\d+", german)) == sorted(re.findall(r"\d+", english))
