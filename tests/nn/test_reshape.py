"""Reshaping in steps that types with shardings allow."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from convs2s_jax.nn.reshape import steps

LENGTHS = st.lists(st.sampled_from([1, 2, 3, 4]), max_size=6)


def is_one_step(old, new):
    """Whether one axis is split, or neighbours are merged: all but one axis of the longer shape stay."""
    fewer, more = sorted((old, new), key=len)
    for i in range(len(fewer)):
        last = len(more) - (len(fewer) - i - 1)
        if fewer[:i] == more[:i] and fewer[i + 1 :] == more[last:] and fewer[i] == np.prod(more[i:last]):
            return True
    return old == new


@given(old=LENGTHS, order=st.randoms(use_true_random=False), cuts=st.lists(st.booleans(), min_size=12, max_size=12))
def test_each_step_splits_or_merges_one_axis(old, order, cuts):
    factors = [p for n in old for p in ([2, 2] if n == 4 else [n])]
    order.shuffle(factors)
    new = [1]
    for factor, cut in zip(factors, cuts, strict=False):
        new = [*new, factor] if cut else [*new[:-1], new[-1] * factor]
    taken = list(steps(old, new))
    assert taken[0] == tuple(n for n in old if n != 1)
    assert taken[-1] == tuple(n for n in new if n != 1)
    assert all(is_one_step(a, b) for a, b in itertools.pairwise(taken))
