"""What a search may be asked for."""

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.search.config import SearchConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beam_size": 0}, "beam_size is 0: .* use 1"),
        ({"length_penalty": float("nan")}, "length_penalty is nan: .* finite"),
        ({"unk_penalty": float("inf")}, "unk_penalty is inf: .* finite"),
        ({"temperature": 0.0}, "temperature is 0.0: .* above 0"),
        ({"min_length": -1}, "min_length is -1: .* 0 or more"),
        ({"max_length_a": -0.5}, "max_length_a is -0.5: .* 0"),
        ({"max_length_b": -1}, "max_length_b is -1: .* 0 or more"),
        ({"max_length_a": 0.0, "max_length_b": 0}, "both 0: .* raise one"),
        ({"stop": "never"}, "stop is 'never'; there are: exact, fairseq"),
    ],
)
def test_nonsense_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        SearchConfig(**values)


def test_longest_length_follows_the_sentence():
    assert SearchConfig(max_length_a=1.5, max_length_b=3).max_length(5) == 10
    assert SearchConfig(max_length_a=0.0, max_length_b=7).max_length(5) == 7
