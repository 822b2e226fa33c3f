"""Messages stay on one line and short, whatever the value."""

import pytest

from convs2s_jax.core.errors import counted, did_you_mean, one_line, shown


@pytest.mark.parametrize("value", [0.3, "a\nb", [(256, 3)] * 4, {"a": None}, True, -7], ids=repr)
def test_a_small_value_is_shown_as_in_python(value):
    assert shown(value) == repr(value)


def test_a_large_value_is_cut():
    nested = [0]
    for _ in range(100):
        nested = [nested, nested]
    for value in (10**5000, "x" * 10**6, [0] * 10**6, nested, {i: i for i in range(10**5)}, b"x" * 10**6):
        assert len(shown(value)) < 300
    assert shown(10**5000) == "a number of thousands of digits"


def test_a_message_is_one_line_without_control_characters():
    assert one_line("a\nb\x1b[31m\tc\u2028größer") == "a\\nb\\x1b[31m\\tc\\u2028größer"
    assert one_line("x" * 5000) == f"{'x' * 1000} ... (3000 more characters) ... {'x' * 1000}"


def test_a_long_name_is_compared_by_its_beginning():
    assert did_you_mean("x" * 10**7, ["dropout"]) == "; available: dropout"


def test_a_count_has_its_noun_in_the_right_number():
    assert [counted(n, "line") for n in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]
    assert [counted(n, "process", "processes") for n in (1, 3)] == ["1 process", "3 processes"]
