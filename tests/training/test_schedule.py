"""Learning rates: hand-written sequences, and fairseq's formulas."""

import math

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training import schedule
from convs2s_jax.training.schedule import (
    CosineConfig,
    FixedConfig,
    InverseSqrtConfig,
    PlateauConfig,
    ScheduleState,
)


def after(cfg, losses):
    """(rate, stopped or not) after each validation, and the sentences told."""
    state, seen, told = schedule.start(cfg), [], []
    for loss in losses:
        state, why = schedule.validated(cfg, state, loss)
        seen.append((schedule.rate(cfg, state, step=1, epoch=1), bool(state.stopped)))
        told.append(why)
    return seen, told


def rates(seen):
    return [rate for rate, _ in seen]


def test_plateau_divides_by_ten_whenever_the_best_is_not_beaten_and_stops_below_a_minimum():
    losses = [5.0, 4.0, 4.0, 3.0, 3.5, 2.9, 2.95, 2.95]
    seen, told = after(PlateauConfig(), losses)
    assert rates(seen) == pytest.approx([0.25, 0.25, 0.025, 0.025, 0.0025, 0.0025, 0.00025, 0.000025])
    assert [stopped for _, stopped in seen] == [False] * 7 + [True]
    assert [bool(why) for why in told] == [False, False, True, False, True, False, True, True]


@pytest.mark.parametrize(
    ("options", "losses", "expected"),
    [
        ({"rate": 1.0, "shrink": 0.5, "minimum": 0.25}, [1.0] * 4, [1.0, 0.5, 0.25, 0.125]),
        (
            {"rate": 1.0, "shrink": 0.5, "patience": 3},
            [2, 2, 2, 1.9, 2, 2, 2, 2, 2, 2, 1.8],
            [1.0] * 6 + [0.5] * 3 + [0.25] * 2,
        ),
        ({"rate": 1.0}, [2.0, math.nan, math.inf], [1.0, 0.1, 0.01]),
    ],
    ids=["stops only below its minimum", "waits as often as its patience says", "shrinks where there is no number"],
)
def test_plateau(options, losses, expected):
    cfg = PlateauConfig(**options)
    seen, _ = after(cfg, losses)
    assert rates(seen) == pytest.approx(expected)
    assert [stopped for _, stopped in seen] == [rate < cfg.minimum for rate in expected]


def test_plateau_says_why():
    _, why = schedule.validated(PlateauConfig(), ScheduleState(rate=0.25, best=2.5), 2.75)
    assert why == "validation loss 2.7500 did not improve on 2.5000: learning rate 0.25 -> 0.025"
    stopped, _ = schedule.validated(PlateauConfig(), ScheduleState(rate=5e-4, best=2.5), 2.75)
    assert stopped.stopped == "the learning rate fell below 0.0001"


def fairseq_fixed(lrs, force_anneal, shrink, epoch):
    """lr[min(epoch - 1, ..)] until epoch force_anneal, from there lr * shrink ** (epoch + 1 - force_anneal)."""
    if force_anneal is None or epoch < force_anneal:
        return lrs[min(epoch - 1, len(lrs) - 1)]
    return lrs[-1] * shrink ** (epoch + 1 - force_anneal)


@pytest.mark.parametrize("lrs", [(0.25,), (0.5, 0.25, 0.125)])
@pytest.mark.parametrize("force_anneal", [None, 1, 2, 3, 6])
def test_fixed_is_fairseqs(lrs, force_anneal):
    cfg = FixedConfig(rates=lrs, force_anneal=force_anneal, shrink=0.2)
    for epoch in range(1, 9):
        found = schedule.rate(cfg, schedule.start(cfg), step=77, epoch=epoch)
        assert found == pytest.approx(fairseq_fixed(lrs, force_anneal, 0.2, epoch), rel=1e-12)


@pytest.mark.parametrize("warmup", [1, 2, 5, 6])
def test_fixed_warms_up_as_fairseq_does(warmup):
    """fairseq keeps a factor, set after each update and applied again when an epoch begins."""
    cfg = FixedConfig(rates=(0.5, 0.25), force_anneal=4, shrink=0.2, warmup=warmup)
    factor, updates = 1 / warmup, 0
    for epoch in (1, 2, 3, 4):
        expected = factor * fairseq_fixed(cfg.rates, 4, 0.2, epoch)
        for _ in range(2):
            found = schedule.rate(cfg, schedule.start(cfg), step=updates + 1, epoch=epoch)
            assert found == pytest.approx(expected, rel=1e-12)
            updates += 1
            if updates < warmup:
                factor = (updates + 1) / warmup
            expected = factor * fairseq_fixed(cfg.rates, 4, 0.2, epoch)


def test_inverse_sqrt_rises_to_its_rate_at_warmup_and_falls_from_there():
    cfg = InverseSqrtConfig(rate=0.4, warmup=4, initial=0.08)
    assert schedule.start(cfg).rate == 0.08
    found = [schedule.rate(cfg, schedule.start(cfg), step=step, epoch=1) for step in (1, 2, 3, 4, 5, 16, 400)]
    assert found == pytest.approx([0.16, 0.24, 0.32, 0.4, 0.4 * math.sqrt(4 / 5), 0.2, 0.04])


def test_cosine_rises_to_its_rate_at_warmup_is_half_way_in_the_middle_and_stays_at_the_end():
    cfg = CosineConfig(rate=0.5, warmup=4, steps=16, initial=0.1, minimum=0.3)
    found = [schedule.rate(cfg, schedule.start(cfg), step=step, epoch=1) for step in (1, 4, 7, 10, 13, 16, 17, 400)]
    quarter = 0.1 * math.sqrt(0.5)  # of the cosine: 45 degrees
    assert found == pytest.approx([0.2, 0.5, 0.4 + quarter, 0.4, 0.4 - quarter, 0.3, 0.3, 0.3])


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (PlateauConfig, {"rate": 0.0}, r"rate is 0.0: use more than 0"),
        (PlateauConfig, {"shrink": 1.0}, r"shrink is 1.0: use a factor between 0 and 1, such as 0.1"),
        (PlateauConfig, {"minimum": 0.0}, r"minimum is 0.0: training would never stop; use 1e-4"),
        (PlateauConfig, {"patience": 0}, r"patience is 0: use 1 or more"),
        (FixedConfig, {"rates": ()}, r"rates is \(\): use one or more rates above 0"),
        (FixedConfig, {"rates": (0.1, -0.1)}, r"rates is \(0.1, -0.1\): use one or more rates above 0"),
        (FixedConfig, {"shrink": 1.5}, r"shrink is 1.5: use a factor above 0, up to 1"),
        (FixedConfig, {"force_anneal": 0}, r"force_anneal is 0: use the number of an epoch, from 1"),
        (FixedConfig, {"warmup": -1}, r"warmup is -1: use 0 steps \(none\) or more"),
        (InverseSqrtConfig, {"rate": -1.0}, r"rate is -1.0: use more than 0"),
        (InverseSqrtConfig, {"warmup": 0}, r"warmup is 0: use 1 step or more"),
        (InverseSqrtConfig, {"rate": 0.1, "initial": 0.2}, r"initial is 0.2: use 0 up to the rate, 0.1"),
        (CosineConfig, {"rate": 0.0}, r"rate is 0.0: use more than 0"),
        (CosineConfig, {"warmup": 0}, r"warmup is 0: use 1 step or more"),
        (CosineConfig, {"warmup": 9, "steps": 9}, r"steps is 9: use more than the warm-up steps, 9"),
        (CosineConfig, {"rate": 0.1, "initial": 0.2}, r"initial is 0.2: use 0 up to the rate, 0.1"),
        (CosineConfig, {"rate": 0.1, "minimum": 0.2}, r"minimum is 0.2: use 0 up to the rate, 0.1"),
    ],
)
def test_nonsense_is_refused(config, values, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        config(**values)
