"""The built-in corpus: parallel phrases generated from Unicode CLDR, in any two locales, without a download.

Operating systems and browsers use CLDR to format dates, times, numbers, units, currencies, lists, and the names of
countries and languages. The Babel library contains it for several hundred locales. The content of a phrase is sampled
once, independent of language ("5 March 2024, full style"), and written in both locales. So every source has exactly one
correct translation, and exact match is as good a score as BLEU. The task is real localisation (word order, plurals,
cases, decimal commas, 12-hour and 24-hour clocks), but not free text.

A kind of phrase is a function that samples content and returns a function of the locale that writes it. For any two
locales, the source must determine the target. So there are no two-digit years, time zones or rounding, and no two
styles that look the same in one language and differ in another. For example, "May 5, 2024" is both medium and long in
English, but German has "05.05.2024" and "5. Mai 2024".
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from types import MappingProxyType
from typing import Literal

from babel import Locale, dates
from babel.lists import format_list
from babel.localedata import locale_identifiers
from babel.numbers import (
    format_compact_currency,
    format_currency,
    format_decimal,
    format_percent,
    format_scientific,
    get_currency_precision,
)
from babel.units import format_compound_unit, format_unit

from convs2s_jax.core.config import check, record
from convs2s_jax.core.errors import UserError, did_you_mean

Phrase = Callable[[Locale], str]
"""A function that writes its content in a given locale."""
Phrases = Mapping[str, Callable[[Random], Phrase]]
Pairs = tuple[list[str], list[str]]

_PATIENCE = 20_000  # the corpus counts as exhausted after this many repeated phrases in a row


@record
class CldrConfig:
    """Sizes and seed of the built-in corpus. No text of one split occurs in another, on either side.

    Attributes:
      train: pairs to train on.
      valid: pairs for validation.
      test: pairs for the final test.
      seed: seed for sampling the phrases.
    """

    train: int = 100_000
    valid: int = 1_000
    test: int = 1_000
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test"):
            size = getattr(self, name)
            check(size >= 1, f"{name} is {size}: the built-in corpus needs a pair in each split; use 1 or more")


# Codes that nearly every locale has words for.
# fmt: off
TERRITORIES = (
    "AR", "AT", "AU", "BE", "BR", "CA", "CH", "CL", "CN", "CO", "CU", "CZ", "DE", "DK", "EG", "ES", "ET", "FI",
    "FR", "GB", "GR", "HU", "ID", "IE", "IL", "IN", "IS", "IT", "JP", "KE", "KR", "MA", "MX", "MY", "NG", "NL",
    "NO", "NZ", "PE", "PH", "PL", "PT", "RO", "RU", "SA", "SE", "SG", "TH", "TR", "UA", "US", "VN", "ZA",
)
LANGUAGES = (
    "am", "ar", "bg", "bn", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "ga", "he", "hi", "hu",
    "id", "is", "it", "ja", "ka", "ko", "la", "lt", "mn", "ms", "ne", "nl", "pl", "pt", "ro", "ru", "sk", "sq",
    "sv", "sw", "ta", "th", "tr", "uk", "ur", "vi", "yo", "zh", "zu",
)
CURRENCIES = (
    "AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EUR", "GBP", "INR", "JPY", "KRW", "MXN", "NOK", "NZD", "PLN",
    "SEK", "TRY", "USD", "ZAR",
)
UNITS = (
    "length-kilometer", "length-meter", "length-centimeter", "length-millimeter", "length-mile", "length-foot",
    "mass-kilogram", "mass-gram", "mass-milligram", "mass-ounce", "area-square-meter", "area-square-kilometer",
    "area-hectare", "volume-liter", "volume-milliliter", "volume-cubic-meter", "temperature-celsius",
    "temperature-fahrenheit", "energy-kilowatt-hour", "energy-joule", "power-watt", "power-kilowatt", "frequency-hertz",
    "frequency-megahertz", "digital-megabyte", "digital-gigabyte", "electric-volt", "electric-ampere",
    "pressure-hectopascal",
)
RATES = (
    ("length-kilometer", "duration-hour"), ("length-mile", "duration-hour"), ("length-meter", "duration-second"),
    ("mass-gram", "volume-liter"), ("mass-kilogram", "volume-liter"), ("volume-liter", "duration-minute"),
    ("volume-liter", "duration-hour"), ("mass-kilogram", "area-square-meter"), ("digital-megabyte", "duration-second"),
    ("energy-kilowatt-hour", "duration-day"),
)
# fmt: on
DURATION = (("duration-day", 30), ("duration-hour", 23), ("duration-minute", 59), ("duration-second", 59))
RELATIVE = ((365 * 86400, 60), (30 * 86400, 11), (7 * 86400, 4), (86400, 6), (3600, 23), (60, 59), (1, 59))
"""Units of relative time in seconds, each with the largest number before Babel switches to the next unit."""
STYLES: tuple[Literal["standard", "or"], ...] = ("standard", "or")


def calendar_date(rng: Random) -> Phrase:
    """Tuesday, March 5, 2024 | March 5, 2024 | 3/5/2024."""
    return _date(_day(rng), rng.choice(("full", "long", "yMd")))


def date_time(rng: Random) -> Phrase:
    """March 5, 2024, 3:05 PM | Tuesday, March 5, 2024, 3:05 PM."""
    day, clock = _day(rng), _clock(rng)
    return _at(_date(day, rng.choice(("full", "long"))), lambda locale: dates.format_time(clock, "short", None, locale))


def log_time(rng: Random) -> Phrase:
    """3/5/2024, 3:05:09 PM."""
    day, clock = _day(rng), _clock(rng).replace(second=rng.randrange(60))
    return _at(_date(day, "yMd"), lambda locale: dates.format_time(clock, "medium", None, locale))


def day_period(rng: Random) -> Phrase:
    """Tue, Mar 5, 3:05 in the afternoon."""
    moment = datetime.combine(_day(rng), _clock(rng))
    return _at(_date(moment, "MMMEd"), _date(moment, "Bhm"))


def date_interval(rng: Random) -> Phrase:
    """Mar 5 – 9, 2024 | Mar 5 – May 9, 2024 | Mar 5, 2024 – May 9, 2025."""
    start = _day(rng)
    end = start + timedelta(days=rng.randint(1, rng.choice((20, 200, 700))))
    return lambda locale: dates.format_interval(start, end, "yMMMd", locale=locale)


def months(rng: Random) -> Phrase:
    """March 2024 or May 2025 | 1st quarter 2024 and March 2025."""
    periods = [_date(_day(rng), rng.choice(("yMMMM", "yMMMM", "yQQQQ"))) for _ in range(2)]
    return _listed(periods, rng.choice(STYLES))


def opening_hours(rng: Random) -> Phrase:
    """Monday, Tuesday, and Friday, 09:30 – 17:15."""
    days = sorted(rng.sample(range(7), rng.randint(1, 3)))
    opens, closes = (time(minute // 60, minute % 60) for minute in sorted(rng.sample(range(24 * 60), 2)))
    return _at(
        _listed([_weekday(day) for day in days]),
        lambda locale: dates.format_interval(opens, closes, "Hm", locale=locale),
    )


def relative_time(rng: Random) -> Phrase:
    """March 5, 2024 (3 days ago) | March 5, 2024 (in 3 days)."""
    day, (unit, limit) = _day(rng), rng.choice(RELATIVE)
    delta = timedelta(seconds=rng.choice((-1, 1)) * rng.randint(1, limit) * unit)
    return _aside(
        _date(day, "long"), lambda locale: dates.format_timedelta(delta, threshold=1, add_direction=True, locale=locale)
    )


def duration(rng: Random) -> Phrase:
    """2 days, 5 hours, and 3 minutes | 5 hours and 3 minutes."""
    first = rng.randrange(3)
    return _listed(
        [_measure(rng.randint(1, limit), unit) for unit, limit in DURATION[first : first + rng.randint(2, 3)]]
    )


def measurements(rng: Random) -> Phrase:
    """12.5 kilometers, 300 grams, and 7 degrees Celsius."""
    amounts = [_measure(_number(rng), unit) for unit in rng.sample(UNITS, rng.randint(1, 3))]
    return _listed(amounts, rng.choice(STYLES))


def rate(rng: Random) -> Phrase:
    """150 km/h | 3.5 g/L."""
    amount, (unit, per) = _number(rng), rng.choice(RATES)
    return lambda locale: str(format_compound_unit(amount, unit, denominator_unit=per, length="short", locale=locale))


def price(rng: Random) -> Phrase:
    """€1,234.50 (-12.5%)."""
    currency = rng.choice(CURRENCIES)
    return _aside(_price(_money(rng, currency), currency, "standard"), _percent(rng.randint(-999, 999)))


def budget(rng: Random) -> Phrase:
    """Germany (€12.5M)."""
    amount, currency = Decimal(rng.randint(10, 9999)) * 10 ** rng.choice((5, 8)), rng.choice(CURRENCIES)
    return _aside(
        _name("territories", rng.choice(TERRITORIES)),
        lambda locale: format_compact_currency(amount, currency, locale=locale, fraction_digits=3),
    )


def money_names(rng: Random) -> Phrase:
    """1,234.50 US dollars and 20.00 euros."""
    currencies = rng.sample(CURRENCIES, rng.randint(1, 2))
    return _listed([_price(_money(rng, one), one, "name") for one in currencies], rng.choice(STYLES))


def statistic(rng: Random) -> Phrase:
    """France (12.5%) and South Africa (7%)."""
    codes = rng.sample(TERRITORIES, rng.randint(1, 2))
    return _listed([_aside(_name("territories", code), _percent(rng.randint(1, 999))) for code in codes])


def numbers(rng: Random) -> Phrase:
    """12, 1,234.5, or 1.25E4."""
    amounts = [(_number(rng), rng.random() < 0.3) for _ in range(rng.randint(2, 3))]
    parts = [_written(n, format_scientific if exponent else format_decimal) for n, exponent in amounts]
    return _listed(parts, rng.choice(STYLES))


def territories(rng: Random) -> Phrase:
    """France, Japan, and South Africa."""
    return _listed(
        [_name("territories", code) for code in rng.sample(TERRITORIES, rng.randint(2, 4))], rng.choice(STYLES)
    )


def languages(rng: Random) -> Phrase:
    """Arabic, Swahili, or German."""
    codes = rng.sample(LANGUAGES, rng.randint(2, 4))
    return _listed([_name("languages", code) for code in codes], rng.choice(STYLES))


def _day(rng: Random) -> date:
    return date(1950, 1, 1) + timedelta(days=rng.randrange(100 * 365))


def _clock(rng: Random) -> time:
    return time(rng.randrange(24), rng.randrange(60))


def _number(rng: Random) -> Decimal:
    """Return a number of one to four digits. For a third of the numbers, one or two of the digits are decimals."""
    return Decimal(rng.randint(1, 10 ** rng.randint(1, 4))) / 10 ** rng.choice((0, 0, 0, 0, 1, 2))


def _money(rng: Random, currency: str) -> Decimal:
    """Return one to four digits before the decimal point, a third with cents if the currency has them."""
    cents = Decimal(rng.choice((0, 0, rng.randrange(100)))) / 100 if get_currency_precision(currency) else Decimal(0)
    return rng.randint(1, 10 ** rng.randint(1, 4)) + cents


def _date(day: date, style: str) -> Phrase:
    """Return a phrase of a day in a style ("full", "long") or with the fields of a skeleton, such as "yMd"."""
    if style in ("full", "long"):
        return lambda locale: dates.format_date(day, style, locale)
    return lambda locale: dates.format_skeleton(style, day, locale=locale)


def _weekday(day: int) -> Phrase:
    return lambda locale: dates.get_day_names("wide", "stand-alone", locale)[day]


def _measure(amount: int | Decimal, unit: str) -> Phrase:
    """Return a phrase in long form, or in short form if CLDR has no other (Babel then writes the unit's code)."""

    def write(locale: Locale) -> str:
        text = format_unit(amount, unit, "long", locale=locale)
        return text if unit not in text else format_unit(amount, unit, "short", locale=locale)

    return write


def _price(amount: Decimal, currency: str, kind: Literal["name", "standard"]) -> Phrase:
    return lambda locale: format_currency(amount, currency, format_type=kind, locale=locale)


def _percent(tenths: int) -> Phrase:
    return lambda locale: format_percent(Decimal(tenths) / 1000, locale=locale, decimal_quantization=False)


def _written(number: Decimal, write: Callable[..., str]) -> Phrase:
    return lambda locale: write(number, locale=locale)


def _name(table: Literal["territories", "languages"], code: str) -> Phrase:
    return lambda locale: getattr(locale, table).get(code, code)


def _listed(parts: Sequence[Phrase], style: Literal["standard", "or"] = "standard") -> Phrase:
    return lambda locale: format_list([part(locale) for part in parts], style, locale)


def _at(day: Phrase, clock: Phrase) -> Phrase:
    """Return day and time of day in the locale's order."""
    return lambda locale: (
        str(dates.get_datetime_format("medium", locale=locale))
        .replace("{0}", clock(locale))
        .replace("{1}", day(locale))
    )


def _aside(text: Phrase, remark: Phrase) -> Phrase:
    return lambda locale: f"{text(locale)} ({remark(locale)})"


# fmt: off
PHRASES: Phrases = MappingProxyType({kind.__name__: kind for kind in (
    calendar_date, date_time, log_time, day_period, date_interval, months, opening_hours, relative_time, duration,
    measurements, rate, price, budget, money_names, statistic, numbers, territories, languages,
)})
# fmt: on
"""All kinds by name. The corpus samples them uniformly."""


class Splits(Mapping[str, Pairs]):
    """The splits by name. Each is generated on first access, so that translating test need not wait for train.

    A stream of pairs is divided by a hash of their text, independent of the seed and the sizes. So valid and test stay
    the same when train grows, and no test pair is ever seen in training, even with another seed. Pairs are sampled
    until a split has its size; pairs of other splits are kept for later. Not thread-safe.

    Args:
      pairs: all pairs, in sampling order.
      cfg: the sizes.
      name: of the corpus, for messages.

    Raises:
      UserError: on access to a split of which `pairs` has too few.
    """

    def __init__(self, pairs: Iterator[tuple[str, str]], cfg: CldrConfig, name: str) -> None:
        self._pairs, self._name = pairs, name
        self._sizes = {"train": cfg.train, "valid": cfg.valid, "test": cfg.test}
        self._made: dict[str, Pairs] = {split: ([], []) for split in self._sizes}

    def __getitem__(self, split: str) -> Pairs:
        while len(self._made[split][0]) < self._sizes[split]:
            pair = next(self._pairs, None)
            if pair is None:
                found = ", ".join(f"{name} {len(lines)}" for name, (lines, _) in self._made.items())
                raise UserError(
                    f"the built-in corpus {self._name} has only {found} pairs: use smaller sizes in data.cldr"
                )
            name = _split(pair)
            if len(self._made[name][0]) < self._sizes[name]:
                for lines, text in zip(self._made[name], pair, strict=True):
                    lines.append(text)
        return self._made[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


def generate(src_locale: str, tgt_locale: str, cfg: CldrConfig, *, phrases: Phrases = PHRASES) -> Splits:
    """Generate the corpus: {"train": (source lines, target lines), "valid": ..., "test": ...}.

    Lines are in sampling order, with all kinds mixed. They contain no line breaks; CLDR's non-breaking spaces are kept.
    The result depends only on the arguments and on the version of Babel (that is, of CLDR).

    Raises:
      UserError: a locale is not in CLDR; or, on access to a split, there are too few pairs.
    """
    src, tgt = _locale("src_locale", src_locale), _locale("tgt_locale", tgt_locale)
    drawn = ((source, target) for _, source, target in _unseen(src, tgt, cfg.seed, phrases))
    return Splits(drawn, cfg, f"{src_locale}-{tgt_locale}")


def generate_kinds(locale: str, cfg: CldrConfig) -> Splits:
    """Generate a corpus of phrases with their kinds, for classification: {"train": (phrases, names of kinds), ...}.

    No phrase occurs twice. Otherwise as `generate`.
    """
    src = _locale("src", locale)
    return Splits(((source, kind) for kind, source, _ in _unseen(src, src, cfg.seed, PHRASES)), cfg, locale)


def _unseen(src: Locale, tgt: Locale, seed: int, phrases: Phrases) -> Iterator[tuple[str, str, str]]:
    """Sample (kind, source, target) with new source and target texts, until there are no new ones."""
    rng, kinds = Random(seed), tuple(phrases)
    sources: set[str] = set()
    targets: set[str] = set()
    misses = 0
    while misses < _PATIENCE:
        kind = rng.choice(kinds)
        phrase = phrases[kind](rng)
        source, target = (_write(kind, phrase, locale) for locale in (src, tgt))
        if source in sources or target in targets:
            misses += 1
            continue
        misses = 0
        sources.add(source)
        targets.add(target)
        yield kind, source, target


def _write(kind: str, phrase: Phrase, locale: Locale) -> str:
    try:
        return phrase(locale)
    except (LookupError, ValueError, NotImplementedError) as error:  # Babel's errors for missing data of a locale
        raise UserError(f"locale '{locale}' has no words for {kind} in CLDR: use another locale") from error


def _split(pair: tuple[str, str]) -> str:
    """Return the split of a pair by a machine-independent hash: 1/16 valid, 1/16 test, the rest train."""
    digest = hashlib.blake2b("\n".join(pair).encode(), digest_size=1).digest()[0]
    return {0: "valid", 1: "test"}.get(digest % 16, "train")


def _locale(field: str, name: str) -> Locale:
    """Parse an identifier such as de, pt_BR or zh-Hant."""
    known = {identifier.lower(): identifier for identifier in locale_identifiers()}
    identifier = known.get(name.replace("-", "_").lower())
    if identifier is None:
        near = did_you_mean(name, known.values(), otherwise="; use an identifier such as de or pt_BR")
        raise UserError(f"{field} is '{name}': CLDR does not have this locale{near}")
    return Locale.parse(identifier)
