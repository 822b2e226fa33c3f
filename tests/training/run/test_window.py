"""Metrics of several updates: sums divided once, and the first step that went wrong."""

import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.batch import LossSums
from convs2s_jax.training.run.window import Window
from convs2s_jax.training.step import StepSums


def sums(nll, tokens, *, loss=None, norm=1.0, finite=(True, True)):
    loss = nll if loss is None else loss
    return StepSums(
        loss=LossSums(loss=jnp.float32(loss), nll=jnp.float32(nll), tokens=jnp.int32(tokens)),
        grad_norm=jnp.float32(norm),
        finite=jnp.asarray(finite),
    )


def opened(told=None, skip=0):
    good = "the checkpoint of step 4 is good"
    told = [] if told is None else told
    return Window(names=["encoder/w", "decoder/w"], skip=skip, last_good=lambda: good, tell=told.append)


def test_loss_is_a_mean_over_tokens_not_over_updates():
    window = opened()
    window.add(1, 0.25, sums(30.0, 10, loss=99.0, norm=1.0))
    window.add(2, 0.25, sums(10.0, 90, norm=2.0))
    window.add(3, 0.125, sums(60.0, 100, norm=6.0))
    window.wait(0.5)
    window.wait(0.25)
    metrics = window.close()
    assert metrics["loss"] == pytest.approx(100 / 200)  # the mean of means is 1.24
    assert metrics["grad_norm"] == pytest.approx(3.0)
    assert metrics["learning_rate"] == 0.125
    assert metrics["input_wait"] == 0.75


def test_next_report_begins_anew():
    window = opened()
    window.add(1, 0.25, sums(30.0, 10))
    window.wait(9.0)
    window.close()
    window.add(2, 0.5, sums(20.0, 10))
    metrics = window.close()
    assert metrics["loss"] == pytest.approx(2.0)
    assert metrics["input_wait"] == 0.0


def test_time_that_was_no_training_does_not_count(monkeypatch):
    clock = iter([0.0, 100.0, 104.0, 104.0])
    monkeypatch.setattr("convs2s_jax.training.run.window.time.perf_counter", lambda: next(clock))
    window = opened()
    window.restart()
    window.add(1, 0.25, sums(30.0, 10))
    assert window.close()["tokens_per_second"] == pytest.approx(10 / 4)


def test_the_first_call_of_a_shape_compiles_and_is_not_timed(monkeypatch):
    """Two shapes: calls of 30 and 20 s compile, and are left out; one of a known shape is not."""
    clock = iter([0.0, 0.0, 30.0, 32.0, 52.0, 57.0, 57.0])
    monkeypatch.setattr("convs2s_jax.training.run.window.time.perf_counter", lambda: next(clock))
    window = opened()
    for step, shapes in enumerate([[(8, 3)], [(4, 5), (8, 3)], [(4, 5)]], 1):
        with window.update_of(shapes):
            window.add(step, 0.25, sums(30.0, 10))
    assert window.close()["tokens_per_second"] == pytest.approx(30 / (57 - 30 - 20))


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
    rest = "at learning rate 0.5; the checkpoint of step 4 is good. Use a lower learning rate or clip"
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
    with pytest.raises(UserError, match="; the gradient of decoder/w is the first that is not finite; the checkpoint"):
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
    with pytest.raises(UserError, match=r"^step 6: the loss is nan .* after 2 that were skipped; the checkpoint of"):
        window.close()


def test_a_window_of_skipped_steps_has_no_loss():
    window = opened(skip=5)
    window.add(1, 0.25, sums(float("nan"), 5))
    assert np.isnan(window.close()["loss"])
