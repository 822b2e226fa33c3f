"""Kinds of phrases. A kind samples content without a language, and the phrase writes it in any locale.

A kind is a function and an entry of `PHRASES`. For any two locales, the source must determine the target. So there are
no two-digit years, time zones or rounding, and no two styles that look the same in one language and differ in another.
For example, "May 5, 2024" is both medium and long in English, but German has "05.05.2024" and "5. Mai 2024". "16 時間"
is both long and short in Japanese, but English has "16 hours" and "16 hr".
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from types import MappingProxyType
from typing import Literal

from babel import Locale
from babel.dates import (
    format_date,
    format_interval,
    format_skeleton,
    format_time,
    format_timedelta,
    get_datetime_format,
    get_day_names,
)
from babel.lists import format_list
from babel.numbers import (
    format_compact_currency,
    format_currency,
    format_decimal,
    format_percent,
    format_scientific,
    get_currency_precision,
)
from babel.units import format_compound_unit, format_unit

from convs2s_jax.data.cldr import names

Phrase = Callable[[Locale], str]
"""A function that writes its content in a given locale."""

STYLES: tuple[Literal["standard", "or"], ...] = ("standard", "or")


def calendar_date(rng: Random) -> Phrase:
    """Tuesday, March 5, 2024 | March 5, 2024 | 3/5/2024."""
    day, style = _day(rng), rng.choice(("full", "long", "numeric"))
    if style == "numeric":
        return lambda locale: format_skeleton("yMd", day, locale=locale)
    return lambda locale: format_date(day, style, locale)


def date_time(rng: Random) -> Phrase:
    """March 5, 2024, 3:05 PM | Tuesday, March 5, 2024, 3:05 PM."""
    day, clock, style = _day(rng), _clock(rng), rng.choice(("full", "long"))
    return lambda locale: _at(format_date(day, style, locale), format_time(clock, "short", locale=locale), locale)


def log_time(rng: Random) -> Phrase:
    """3/5/2024, 3:05:09 PM."""
    day, clock = _day(rng), _clock(rng).replace(second=rng.randrange(60))
    return lambda locale: _at(
        format_skeleton("yMd", day, locale=locale), format_time(clock, "medium", locale=locale), locale
    )


def day_period(rng: Random) -> Phrase:
    """Tue, Mar 5, 3:05 in the afternoon."""
    moment = datetime.combine(_day(rng), _clock(rng))
    return lambda locale: _at(
        format_skeleton("MMMEd", moment, locale=locale), format_skeleton("Bhm", moment, locale=locale), locale
    )


def date_interval(rng: Random) -> Phrase:
    """Mar 5 – 9, 2024 | Mar 5 – May 9, 2024 | Mar 5, 2024 – May 9, 2025."""
    start = _day(rng)
    end = start + timedelta(days=rng.randint(1, rng.choice((20, 200, 700))))
    return lambda locale: format_interval(start, end, "yMMMd", locale=locale)


def months(rng: Random) -> Phrase:
    """March 2024 or May 2025 | 1st quarter 2024 and March 2025."""
    periods = [(_day(rng), rng.choice(("yMMMM", "yMMMM", "yQQQQ"))) for _ in range(2)]
    style = rng.choice(STYLES)
    return lambda locale: format_list(
        [format_skeleton(skeleton, day, locale=locale) for day, skeleton in periods], style, locale
    )


def opening_hours(rng: Random) -> Phrase:
    """Monday, Tuesday, and Friday, 09:30 – 17:15."""
    days = sorted(rng.sample(range(7), rng.randint(1, 3)))
    opens, closes = (time(minute // 60, minute % 60) for minute in sorted(rng.sample(range(24 * 60), 2)))

    def write(locale: Locale) -> str:
        weekdays = get_day_names("wide", "stand-alone", locale)
        listed = format_list([weekdays[day] for day in days], locale=locale)
        return _at(listed, format_interval(opens, closes, "Hm", locale=locale), locale)

    return write


def relative_time(rng: Random) -> Phrase:
    """March 5, 2024 (3 days ago) | March 5, 2024 (in 3 days)."""
    day = _day(rng)
    unit, limit = rng.choice(names.RELATIVE)
    sign = rng.choice((-1, 1))
    delta = sign * rng.randint(1, limit) * unit
    return lambda locale: _aside(
        format_date(day, "long", locale), format_timedelta(delta, threshold=1, add_direction=True, locale=locale)
    )


def duration(rng: Random) -> Phrase:
    """2 days, 5 hours, and 3 minutes | 5 hours and 3 minutes."""
    first = rng.randrange(3)
    parts = [(rng.randint(1, limit), unit) for unit, limit in names.DURATION[first : first + rng.randint(2, 3)]]
    return lambda locale: format_list([_measure(n, unit, locale) for n, unit in parts], locale=locale)


def measurements(rng: Random) -> Phrase:
    """12.5 kilometers, 300 grams, and 7 degrees Celsius."""
    amounts = [(_number(rng), unit) for unit in rng.sample(names.UNITS, rng.randint(1, 3))]
    style = rng.choice(STYLES)
    return lambda locale: format_list([_measure(n, unit, locale) for n, unit in amounts], style, locale)


def rate(rng: Random) -> Phrase:
    """150 km/h | 3.5 g/L."""
    amount, (unit, per) = _number(rng), rng.choice(names.RATES)
    return lambda locale: str(format_compound_unit(amount, unit, denominator_unit=per, length="short", locale=locale))


def price(rng: Random) -> Phrase:
    """€1,234.50 (-12.5%)."""
    currency = rng.choice(names.CURRENCIES)
    amount = _money(rng, currency)
    change = Decimal(rng.randint(-999, 999)) / 1000
    return lambda locale: _aside(format_currency(amount, currency, locale=locale), _percent(change, locale))


def budget(rng: Random) -> Phrase:
    """Germany (€12.5M)."""
    amount, currency = _large(rng), rng.choice(names.CURRENCIES)
    territory = rng.choice(names.TERRITORIES)
    return lambda locale: _aside(
        _territory(territory, locale), format_compact_currency(amount, currency, locale=locale, fraction_digits=3)
    )


def money_names(rng: Random) -> Phrase:
    """1,234.50 US dollars and 20.00 euros."""
    amounts = [(_money(rng, currency), currency) for currency in rng.sample(names.CURRENCIES, rng.randint(1, 2))]
    style = rng.choice(STYLES)
    return lambda locale: format_list(
        [format_currency(n, currency, format_type="name", locale=locale) for n, currency in amounts], style, locale
    )


def statistic(rng: Random) -> Phrase:
    """France (12.5%) and South Africa (7%)."""
    codes = rng.sample(names.TERRITORIES, rng.randint(1, 2))
    shares = [(code, Decimal(rng.randint(1, 999)) / 1000) for code in codes]
    return lambda locale: format_list(
        [_aside(_territory(code, locale), _percent(share, locale)) for code, share in shares], locale=locale
    )


def numbers(rng: Random) -> Phrase:
    """12, 1,234.5, or 1.25E4."""
    amounts = [(_number(rng), rng.random() < 0.3) for _ in range(rng.randint(2, 3))]
    style = rng.choice(STYLES)
    return lambda locale: format_list(
        [(format_scientific if exponent else format_decimal)(n, locale=locale) for n, exponent in amounts],
        style,
        locale,
    )


def territories(rng: Random) -> Phrase:
    """France, Japan, and South Africa."""
    codes, style = rng.sample(names.TERRITORIES, rng.randint(2, 4)), rng.choice(STYLES)
    return lambda locale: format_list([_territory(code, locale) for code in codes], style, locale)


def languages(rng: Random) -> Phrase:
    """Arabic, Swahili, or German."""
    codes, style = rng.sample(names.LANGUAGES, rng.randint(2, 4)), rng.choice(STYLES)
    return lambda locale: format_list([locale.languages.get(code, code) for code in codes], style, locale)


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


def _large(rng: Random) -> Decimal:
    """Return millions or billions with at most four digits."""
    return Decimal(rng.randint(10, 9999)) * 10 ** rng.choice((5, 8))


def _measure(amount: int | Decimal, unit: str, locale: Locale) -> str:
    """Format in long form, or in short form if CLDR has no other (Babel then writes the unit's code)."""
    text = format_unit(amount, unit, "long", locale=locale)
    return text if unit not in text else format_unit(amount, unit, "short", locale=locale)


def _percent(share: Decimal, locale: Locale) -> str:
    return format_percent(share, locale=locale, decimal_quantization=False)


def _territory(code: str, locale: Locale) -> str:
    return locale.territories.get(code, code)


def _at(day: str, clock: str, locale: Locale) -> str:
    """Return day and time of day in the locale's order."""
    return str(get_datetime_format("medium", locale=locale)).replace("{0}", clock).replace("{1}", day)


def _aside(text: str, remark: str) -> str:
    return f"{text} ({remark})"


PHRASES: Mapping[str, Callable[[Random], Phrase]] = MappingProxyType(
    {
        "calendar_date": calendar_date,
        "date_time": date_time,
        "log_time": log_time,
        "day_period": day_period,
        "date_interval": date_interval,
        "months": months,
        "opening_hours": opening_hours,
        "relative_time": relative_time,
        "duration": duration,
        "measurements": measurements,
        "rate": rate,
        "price": price,
        "budget": budget,
        "money_names": money_names,
        "statistic": statistic,
        "numbers": numbers,
        "territories": territories,
        "languages": languages,
    }
)
"""All kinds by name. The corpus samples them uniformly."""
