"""Metrics of several updates: sums divided once, and the first step that went wrong."""

import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.batch import LossSums
from convs2s_jax.training.run.reports import measures
from convs2s_jax.training.run.reports.measures import WallClock, Window
from convs2s_jax.training.step import StepSums


def sums(nll, tokens, *, loss=None, norm=1.0, finite=(True, True)):
    loss = nll if loss is None else loss
    return StepSums(
        loss=LossSums(loss=jnp.float32(loss), nll=jnp.float32(nll), tokens=jnp.int32(tokens)),
        grad_norm=jnp.float32(norm),
        finite=jnp.asarray(finite),
    )


class Time:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 1000.0

    def pass_by(self, seconds):
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    moved = Time()
    monkeypatch.setattr(measures.time, "perf_counter", lambda: moved.now)
    return moved


def opened(told=None, skip=0, clock=None, peak=None):
    way_out = "Use a lower learning rate or clip"
    told, clock = [] if told is None else told, clock or WallClock()
    return Window(
        names=["encoder/w", "decoder/w"], skip=skip, remedy=lambda: way_out, tell=told.append, clock=clock, peak=peak
    )


def test_loss_is_a_mean_over_tokens_not_over_updates():
    window = opened()
    window.add(1, 0.25, sums(30.0, 10, loss=99.0, norm=1.0))
    window.add(2, 0.25, sums(10.0, 90, norm=2.0))
    window.add(3, 0.125, sums(60.0, 100, norm=6.0))
    metrics = window.close()
    assert metrics["loss"] == pytest.approx(100 / 200)  # the mean of means is 1.24
    assert metrics["grad_norm"] == pytest.approx(3.0)
    assert metrics["learning_rate"] == 0.125


def test_next_report_begins_anew():
    window = opened()
    window.add(1, 0.25, sums(30.0, 10))
    window.close()
    window.add(2, 0.5, sums(20.0, 10))
    metrics = window.close()
    assert metrics["loss"] == pytest.approx(2.0)


def test_speeds_are_of_the_time_of_updates_and_their_input_alone(time):
    """Two updates in 6 s and 2 s of waiting for input, beside 100 s of validation and 40 s of anything else."""
    clock = WallClock()
    window = opened(clock=clock, peak=500.0)
    time.pass_by(40.0)
    with clock.during("compute"):
        window.add(1, 0.25, sums(30.0, 10), 300.0)
        time.pass_by(8.0)
        clock.reassign("input", 2.0)
        with clock.during("validation"):
            time.pass_by(90.0)
            with clock.during("checkpoint"):
                time.pass_by(4.0)
            time.pass_by(10.0)
        window.add(2, 0.25, sums(30.0, 14), 700.0)
        metrics = window.close()
    assert metrics["tokens_per_second"] == pytest.approx(24 / 8)
    assert metrics["step_seconds"] == pytest.approx(8 / 2)
    assert metrics["mfu"] == pytest.approx(1000 / 8 / 500)
    assert metrics["input_wait"] == pytest.approx(2)
    seconds = {"compute": 6, "input": 2, "validation": 100, "checkpoint": 4, "compile": 0, "other": 40}
    assert {name: metrics[f"{name}_share"] for name in seconds} == pytest.approx(
        {name: part / 152 for name, part in seconds.items()}
    )


def test_an_update_that_compiles_is_in_no_speed(time):
    """Of six updates of two shapes three compile: each shape as the first batch, and one as a further batch."""
    clock = WallClock()
    window = opened(clock=clock, peak=100.0)
    one, two = (8, 3), (4, 5)
    updates = [([one], 30.0), ([one], 2.0), ([one, one], 20.0), ([one], 3.0), ([one, one], 5.0), ([two], 10.0)]
    with clock.during("compute"):
        for step, (shapes, seconds) in enumerate(updates, 1):
            with window.update_of(shapes):
                time.pass_by(seconds)
            window.add(step, 0.25, sums(30.0, 10**step), 10.0**step)
        metrics = window.close()
    seconds, done = 2.0 + 3.0 + 5.0, 10**2 + 10**4 + 10**5
    assert metrics["tokens_per_second"] == pytest.approx(done / seconds)
    assert metrics["step_seconds"] == pytest.approx(seconds / 3)
    assert metrics["mfu"] == pytest.approx(done / seconds / 100)
    assert metrics["compile_share"] == pytest.approx(60 / 70)
    assert metrics["loss"] == pytest.approx(180 / 1111110)  # of all


def test_the_device_is_awaited_before_and_after_an_update_that_compiles(time):
    """Results of 5 s each: those of earlier updates are no compilation, that of the update itself is none of speed."""
    clock = WallClock()
    window = opened(clock=clock)

    class Slow(float):
        def __array__(self, *_, **__):
            time.pass_by(5.0)
            return np.asarray(float(self))

    def slow(tokens):
        one = sums(30.0, tokens)
        return one.replace(grad_norm=Slow(1.0))

    with clock.during("compute"):
        window.add(1, 0.25, slow(10))
        with window.update_of([(8, 3)]):
            time.pass_by(30.0)
        window.add(2, 0.25, slow(10))
        metrics = window.close()
    assert metrics["tokens_per_second"] == pytest.approx(10 / 5)
    assert metrics["compile_share"] == pytest.approx(35 / 40)


def test_a_report_of_updates_that_compile_has_no_speed(time):
    clock = WallClock()
    window = opened(clock=clock, peak=1.0)
    with clock.during("compute"):
        with window.update_of([(8, 3)]):
            time.pass_by(30.0)
        window.add(1, 0.25, sums(30.0, 10))
        time.pass_by(1.0)
        metrics = window.close()
    assert {"tokens_per_second", "step_seconds", "mfu"} & set(metrics) == set()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (sums(float("nan"), 5), "the loss is nan and the gradient norm 1.0"),
        (sums(float("inf"), 5), "the loss is inf and the gradient norm 1.0"),
        (sums(2.0, 5, norm=float("nan")), "the loss is 2.0 and the gradient norm nan"),
    ],
)
def test_the_first_step_that_is_not_finite_is_named_two_steps_later(bad, message):
    window = opened()
    for step in (7, 8):
        window.add(step, 0.25, sums(2.0, 5))
    window.add(9, 0.5, bad)
    window.add(10, 0.25, sums(float("nan"), 5, norm=float("nan")))
    rest = "at learning rate 0.5. Use a lower learning rate or clip"
    with pytest.raises(UserError, match=f"^step 9: {message} {rest}$"):
        window.add(11, 0.25, sums(2.0, 5))


def test_a_report_looks_at_all_steps():
    window = opened()
    window.add(1, 0.25, sums(float("nan"), 5))
    with pytest.raises(UserError, match=r"^step 1: the loss is nan"):
        window.close()


def test_the_first_parameter_whose_gradient_is_not_finite_is_named():
    window = opened()
    window.add(1, 0.25, sums(2.0, 5, norm=float("inf"), finite=(True, False)))
    with pytest.raises(UserError, match=r"; the gradient of decoder/w is the first that is not finite\. Use a lower"):
        window.close()


def test_bad_steps_are_skipped_while_not_too_many_follow_each_other():
    told = []
    window = opened(told, skip=2)
    nan = float("nan")
    for step, loss in enumerate([20.0, nan, nan, 10.0, nan]):
        window.add(step, 0.25, sums(loss, 10))
    metrics = window.close()
    assert metrics["loss"] == pytest.approx(30 / 20)
    assert metrics["skipped"] == 3
    assert [line.split(";")[-1] for line in told] == [f" skipped, {i} in a row of at most 2" for i in (1, 2, 1)]
    window.add(5, 0.25, sums(nan, 10))
    window.add(6, 0.25, sums(nan, 10))
    with pytest.raises(UserError, match=r"^step 6: the loss is nan .* after 2 skipped updates\. Use"):
        window.close()


def test_a_window_of_skipped_steps_has_no_loss():
    window = opened(skip=5)
    window.add(1, 0.25, sums(float("nan"), 5))
    assert np.isnan(window.close()["loss"])
