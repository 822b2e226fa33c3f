"""CLDR codes used in the phrases: a small vocabulary that nearly every locale has words for."""

from datetime import timedelta

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
# fmt: on

UNITS = (
    "length-kilometer",
    "length-meter",
    "length-centimeter",
    "length-millimeter",
    "length-mile",
    "length-foot",
    "mass-kilogram",
    "mass-gram",
    "mass-milligram",
    "mass-ounce",
    "area-square-meter",
    "area-square-kilometer",
    "area-hectare",
    "volume-liter",
    "volume-milliliter",
    "volume-cubic-meter",
    "temperature-celsius",
    "temperature-fahrenheit",
    "energy-kilowatt-hour",
    "energy-joule",
    "power-watt",
    "power-kilowatt",
    "frequency-hertz",
    "frequency-megahertz",
    "digital-megabyte",
    "digital-gigabyte",
    "electric-volt",
    "electric-ampere",
    "pressure-hectopascal",
)

RATES = (
    ("length-kilometer", "duration-hour"),
    ("length-mile", "duration-hour"),
    ("length-meter", "duration-second"),
    ("mass-gram", "volume-liter"),
    ("mass-kilogram", "volume-liter"),
    ("volume-liter", "duration-minute"),
    ("volume-liter", "duration-hour"),
    ("mass-kilogram", "area-square-meter"),
    ("digital-megabyte", "duration-second"),
    ("energy-kilowatt-hour", "duration-day"),
)

DURATION = (
    ("duration-day", 30),
    ("duration-hour", 23),
    ("duration-minute", 59),
    ("duration-second", 59),
)

RELATIVE = (
    (timedelta(days=365), 60),
    (timedelta(days=30), 11),
    (timedelta(days=7), 4),
    (timedelta(days=1), 6),
    (timedelta(hours=1), 23),
    (timedelta(minutes=1), 59),
    (timedelta(seconds=1), 59),
)
"""Units of relative time, each with the largest number before Babel switches to the next unit."""
