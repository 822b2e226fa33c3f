"""What a run measures: time, sums of updates, memory, arithmetic, and traces of updates."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.reports import measures
from convs2s_jax.training.run.reports.measures import (
    ACTIVITIES,
    WallClock,
    Window,
    device_memory,
    peak_flops,
)
from convs2s_jax.training.step import LossSums, StepSums


def test_seconds_are_counted_once_whatever_is_within_what(monkeypatch):
    """Also where an error ends an activity; the account is of the whole time."""
    now = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 64.0])
    monkeypatch.setattr(measures.time, "perf_counter", lambda: next(now))
    clock = WallClock()

    def interrupted():
        with clock.during("compute"):
            with clock.during("validation"):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    first = clock.take()
    assert first == {"compute": 10.0, "input": 0.0, "validation": 4.0, "checkpoint": 0.0, "compile": 0.0, "other": 17.0}
    assert clock.take() == dict.fromkeys(ACTIVITIES, 0.0) | {"other": 32.0}
    assert clock.account() == (
        "64.0 s, of which compute 15.6 %, input 0.0 %, validation 6.2 %, checkpoint 0.0 %, compile 0.0 %, other 78.1 %"
    )


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


def test_speeds_are_of_the_time_of_updates_and_their_input_alone(time):
    """Two updates in 6 s and 2 s of waiting for input, beside 100 s of validation and 40 s of anything else."""
    clock = WallClock()
    window = opened(clock=clock, peak=500.0)
    time.pass_by(40.0)
    with clock.during("compute"):
        window.add(1, 0.25, sums(30.0, 10), 300.0)
        time.pass_by(6.0)
        with clock.during("input"):
            time.pass_by(2.0)
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


@pytest.mark.parametrize(
    ("bad", "message"),
    [
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


def device(stats):
    return SimpleNamespace(memory_stats=lambda: stats)


def test_the_fullest_device_counts_and_what_no_device_reports_is_left_out():
    found = device_memory(
        [device({"bytes_in_use": 5, "peak_bytes_in_use": 70}), device({"bytes_in_use": 6}), device(None)]
    )
    assert found == {"memory": 6, "memory_peak": 70}
    assert device_memory(jax.local_devices()) == {}  # CPUs


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        ("TPU v5 lite", 197e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),  # a seventh of the GPU
        ("cpu", None),
    ],
)
def test_the_peak_is_that_of_the_kind_times_the_devices(kind, rate):
    mesh = SimpleNamespace(devices=np.array([[SimpleNamespace(device_kind=kind)] * 3] * 2))
    assert peak_flops(mesh, None) == (None if rate is None else 6 * rate)
    assert peak_flops(mesh, 1e12) == 6e12


@pytest.fixture
def calls(monkeypatch):
    """What the profiler was asked for, with the number of updates done then."""
    made = []
    monkeypatch.setattr(measures.jax.profiler, "start_trace", lambda folder: made.append(("start", folder)))
    monkeypatch.setattr(measures.jax.profiler, "stop_trace", lambda: made.append(("stop",)))
    return made


@pytest.mark.parametrize(
    ("asked", "begin", "expected"),
    [
        ((4, 2), 0, [4, 5]),
        ((1, 1), 0, [1]),
        ((6, 9), 5, [6, 7, 8]),  # the run ends before
        ((4, 2), 4, []),
        (None, 0, []),
    ],
)
def test_just_the_updates_asked_for_are_traced(calls, tmp_path, asked, begin, expected):
    told, traced = [], []
    profile = measures.Profile(asked, tmp_path, tell=told.append, clock=WallClock())
    profile.done(begin, None)
    for step in range(begin + 1, 9):
        if calls[-1:] == [("start", tmp_path)]:
            traced.append(step)
        profile.done(step, None)
    profile.close()
    assert traced == expected
    assert calls == ([("start", tmp_path), ("stop",)] if expected else [])
    done = f"the trace of training.profile is in {tmp_path}"
    missed = "training.profile begins at step 4, which this start did not do: nothing is traced"
    assert told == ([done] if expected else [missed] if asked else [])
