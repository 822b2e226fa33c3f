"""Batches made ahead: in order, from any start, errors handed over, no thread left behind."""

import threading
import time

import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.data import loader
from convs2s_jax.data.loader import fill, load
from convs2s_jax.data.plan import Plan, PlannedBatch
from convs2s_jax.data.shapes import Shape
from convs2s_jax.data.tokens_on_disk import in_memory


def plan_of(count):
    batches = tuple(PlannedBatch(0, np.array([i])) for i in range(count))
    return Plan(shapes=(Shape(4, 4, 1),), batches=batches)


def row(planned):
    return int(planned.rows[0])


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not threads()


@pytest.mark.parametrize("start", [0, 1, 19, 20])
def test_batches_come_in_the_plans_order_from_any_start(start):
    assert list(load(plan_of(20), row, start=start)) == list(range(start, 20))


def test_batches_are_made_ahead_but_not_without_bound():
    made = []
    batches = load(plan_of(50), lambda planned: made.append(row(planned)))
    next(batches)
    deadline = time.monotonic() + 60
    while len(made) < 1 + loader.AHEAD and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    # the one used, those that wait, and one for which there is no room yet
    assert 1 + loader.AHEAD <= len(made) <= 2 + loader.AHEAD
    batches.close()


class Broken(Exception):
    pass


def test_error_of_make_is_raised_where_batches_are_used():
    def make(planned):
        if row(planned) == 3:
            raise Broken("row 3")
        return row(planned)

    batches = load(plan_of(9), make)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Broken, match="row 3"):
        next(batches)


def test_leaving_early_or_with_an_error_ends_the_thread():
    batches = load(plan_of(1000), row)
    next(batches)
    assert len(threads()) == 1
    batches.close()
    assert not threads()
    with pytest.raises(Broken, match="of the caller"):  # noqa: PT012
        for batch in load(plan_of(1000), row):
            if batch == 2:
                raise Broken("of the caller")
    assert not threads()


SENTENCES = in_memory([[5, 6, 7], [], [8, 9, 10, 11, 12]], size=20)


def test_sentences_end_with_eos_are_padded_and_cut():
    filled = fill(SENTENCES, np.array([2, 0, 1]), (4, 5))
    assert filled.dtype == np.int32
    assert filled.tolist() == [
        [8, 9, 10, 11, EOS],  # cut: 12 has no room
        [5, 6, 7, EOS, PAD],
        [EOS, PAD, PAD, PAD, PAD],
        [PAD, PAD, PAD, PAD, PAD],
    ]
    assert fill(SENTENCES, np.array([2]), (1, 6)).tolist() == [[8, 9, 10, 11, 12, EOS]]  # it just fits


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_any_rows_of_any_text_are_filled_as_by_a_loop(size):
    """Among them texts without a token, rows of the last sentences, and texts shorter than the batch is wide."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        text = [rng.integers(size, size=n).tolist() for n in rng.integers(rng.integers(1, 9), size=rng.integers(1, 9))]
        rows = rng.integers(len(text), size=rng.integers(9))
        expected = np.full((8, rng.integers(1, 12)), PAD)
        for filled, i in zip(expected, rows, strict=False):
            ids = [*text[i][: len(filled) - 1], EOS]
            filled[: len(ids)] = ids
        assert fill(in_memory(text, size=size), rows, expected.shape).tolist() == expected.tolist()


def test_the_plan_of_the_next_epoch_is_made_while_one_is_used():
    made = {epoch: threading.Event() for epoch in range(1, 6)}
    by = {}

    def make(epoch):
        by[epoch] = threading.current_thread()
        made[epoch].set()
        return plan_of(epoch)

    plans = loader.Epochs(make, last=4)
    for epoch in (2, 3, 4):  # a resumed run begins anywhere
        assert len(plans.get(epoch).batches) == epoch
        if epoch < 4:
            assert made[epoch + 1].wait(60)
            assert by[epoch + 1] is not threading.current_thread()
    assert sorted(by) == [2, 3, 4]  # none beyond the last, none twice

    def broken(epoch):
        if epoch == 2:
            raise Broken("plan")
        return plan_of(1)

    plans = loader.Epochs(broken)
    plans.get(1)
    with pytest.raises(Broken, match="plan"):
        plans.get(2)
