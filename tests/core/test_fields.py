"""What flags and the reference are made from: the description of a field, its type in words, its default."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import pytest

from convs2s_jax.core.fields import describe, fields_of, summary, type_text


@dataclass(frozen=True, kw_only=True)
class Base:
    """A record: with a colon.

    And a paragraph.

    Attributes:
      rate: per second
        (see: above), on
        two lines.
      first, second: of both.

    Raises:
      nothing: at all.
    """

    rate: float = 1.0
    first: str = "a"
    second: str = "b"


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    """Another.

    Attributes:
      second: is another here.
      count: of its own.
    """

    count: int
    items: tuple[int, ...] = dataclasses.field(default_factory=lambda: (1, 2))


def test_descriptions_come_from_attributes_of_the_class_and_its_bases():
    assert describe(Base) == {
        "rate": "per second (see: above), on two lines.",
        "first": "of both.",
        "second": "of both.",
    }
    assert describe(Derived) == describe(Base) | {"second": "is another here.", "count": "of its own."}


def test_fields_have_types_defaults_and_descriptions():
    fields = {field.name: field for field in fields_of(Derived)}
    assert fields["rate"] == ("rate", float, 1.0, "per second (see: above), on two lines.")
    assert fields["count"].default is dataclasses.MISSING
    assert fields["items"][2:] == ((1, 2), "")
    assert summary(Base) == "A record: with a colon.\n\nAnd a paragraph."


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Literal["a", "b"] | None, "one of a, b or None"),
        (tuple[float, ...], "list of numbers"),
        (tuple[tuple[str, str], ...], "list of items, each a list of 2 strings"),
        (tuple[Base, ...], "list of items, each a record (rate, first, second)"),
    ],
    ids=str,
)
def test_types_are_told_in_the_words_of_the_messages(kind, text):
    assert type_text(kind) == text
