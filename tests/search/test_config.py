"""What a search may be asked for."""

import math
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.search.batching import max_output_length
from convs2s_jax.search.config import BOUNDS, SearchConfig
from convs2s_jax.search.options import search_options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"unk_penalty": float("inf")}, "unk_penalty is inf: .* finite"),
        ({"max_length_a": 0.0, "max_length_b": -1}, "max_length_a is 0 and max_length_b is -1: .* raise one"),
        ({"stop": "never"}, "stop is 'never'; available: exact, fairseq"),
        ({"length_penalty_kind": "log"}, "length_penalty_kind is 'log'; available: gnmt, power"),
        ({"top_p": 0.0, "sampling": True}, "top_p is 0.0: .* above 0"),
        ({"top_p": 1.5, "sampling": True}, "top_p is 1.5: .* at most 1"),
        ({"top_k": 4}, "top_k is 4 without sampling"),
        ({"top_p": 0.5}, "top_p is 0.5 without sampling"),
    ],
)
def test_nonsense_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        SearchConfig(**values)


@pytest.mark.parametrize("name", BOUNDS)
def test_values_no_search_can_work_with_are_refused(name):
    """Numbers beyond float32 or int32 used to end in a traceback, in no memory, or in scores that are no numbers."""
    whole = isinstance(getattr(SearchConfig(), name), int)
    for value in (10**18, -(10**18)) if whole else (1e39, -1e39, math.nan):
        with pytest.raises(UserError, match=rf"^{name} is {re.escape(str(value))}: .*(use|expected) "):
            SearchConfig(**{name: value, "sampling": name == "top_k"})
    more = {"max_length_a": 1.0} if name != "max_length_a" else {"max_length_b": 1}
    for value in BOUNDS[name]:
        value = int(value) if whole else float(value)
        cfg = SearchConfig(**{**more, name: value, "sampling": name == "top_k"})
        assert np.isfinite([float(x) for x in jax.tree.leaves(search_options(cfg))]).all()


def test_diverse_groups_of_older_runs_are_refused_unless_there_was_one():
    assert build(SearchConfig, {"diverse_groups": 1, "diverse_strength": 0.5}) == SearchConfig()
    with pytest.raises(UserError, match=r"diverse_groups is 2: this version has no such field; leave it out"):
        build(SearchConfig, {"diverse_groups": 2})


def fairseqs_bound(a, b, source, positions):
    """`SequenceGenerator._generate`: None where its assertion of at least `min_len` (1) tokens fails."""
    bound = min(int(a * source + b), positions - 1)
    return bound if bound >= 1 else None


@pytest.mark.parametrize("positions", [4, 1024])
@pytest.mark.parametrize(("a", "b"), [(1.0, -3), (0.5, -1), (1.2, -20), (2.0, 10), (0.0, 200), (0.3, 0)])
def test_longest_length_is_fairseqs_and_never_less_than_one_token(a, b, positions):
    model = SimpleNamespace(max_target=positions)
    for source in range(1, 40):
        expected = fairseqs_bound(a, b, source, positions)
        ours = max_output_length((model,), SearchConfig(max_length_a=a, max_length_b=b), source)
        assert ours == (1 if expected is None else expected)
