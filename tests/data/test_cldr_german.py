"""German phrases against grammar and calendar, apart from the tables that they are made from."""

import re
from datetime import datetime

import pytest

from tests.data.cldr_phrases import drawn

# What CLDR says, from tables written here by hand.

GERMAN_MONTHS = ["Januar", "Februar", "März", "April", "Mai", "Juni"] + [
    "Juli",
    "August",
    "September",
    "Oktober",
    "November",
    "Dezember",
]
GERMAN_DAYS = ["Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"]
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


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("date_interval", 3),
        ("months", 2),
        ("opening_hours", 4),
        ("duration", 2),
        ("measurements", 1),
        ("rate", 1),
        ("price", 2),
        ("budget", 1),
        ("money_names", 1),
        ("statistic", 1),
    ],
)
def test_german_numbers_are_the_english_ones(kind, least):
    for english, german in drawn(kind, ("en", "de"), 200):
        assert len(re.findall(r"\d+", english)) >= least
        assert sorted(re.findall(r"\d+", german)) == sorted(re.findall(r"\d+", english))
