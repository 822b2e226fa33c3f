"""Messages stay on one line and short, whatever the value."""

from convs2s_jax.core.errors import UserError, did_you_mean, one_line, shown


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


def test_a_user_error_is_a_value_error():
    """So `except ValueError` around a call of the library catches what a user got wrong too."""
    assert issubclass(UserError, ValueError)
