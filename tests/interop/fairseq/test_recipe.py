"""fairseq's arguments of training, read and written."""

import math

import pytest

from convs2s_jax.core.config import build, to_dict
from convs2s_jax.interop.fairseq import recipe
from convs2s_jax.training import schedule
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.schedule import CosineConfig
from tests import tiny

SCHEDULES = [
    {"kind": "fixed", "rates": [0.25, 0.1], "force_anneal": 6, "shrink": 0.5, "warmup": 40},
    {"kind": "plateau", "rate": 0.3, "shrink": 0.2, "minimum": 1e-3, "patience": 2},
    {"kind": "inverse_sqrt", "rate": 5e-4, "warmup": 100, "initial": 1e-6},
    {"kind": "cosine", "rate": 5e-4, "warmup": 100, "steps": 2000, "initial": 1e-6, "minimum": 1e-5},
]
OPTIMIZERS = [
    {"kind": "nesterov", "momentum": 0.9, "weight_decay": 1e-4},
    {"kind": "adam", "b1": 0.8, "b2": 0.95, "eps": 1e-7, "weight_decay": 0.01},
]
SMOOTH = {"criterion": "label_smoothed_cross_entropy", "label_smoothing": 0.1}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s["kind"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda s: s["kind"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_training_written_is_read_again(schedule, optimizer, smoothing):
    training = {"schedule": schedule, "optimizer": optimizer, "label_smoothing": smoothing, "clip": 0.2}
    cfg = build(Config, tiny.values() | {"training": training, "seed": 7})
    found = recipe.recipe(recipe.args_of_training(cfg), None, 1)
    follows = "followed the validation metric 'loss' of its criterion; here it follows the loss without smoothing"
    lost = [sentence for sentence in found.lost if follows in sentence]
    assert found.lost == lost
    assert bool(lost) == (bool(smoothing) and schedule["kind"] == "plateau")
    again = build(Config, tiny.values() | {"training": found.training, "seed": found.seed})
    assert to_dict(again) == to_dict(cfg)
    assert found.batch == {"tokens": cfg.data.batch.tokens, "accumulate": 1}


@pytest.mark.parametrize(
    ("args", "keeps"),
    [
        ({}, True),
        ({"best_checkpoint_metric": "bleu"}, False),
        ({"criterion": "adaptive_loss"}, False),
        ({"ignore_prefix_size": 1}, False),
        (SMOOTH, False),
        (SMOOTH | {"best_checkpoint_metric": "nll_loss"}, True),
        ({"sentence_avg": True}, False),
    ],
)
def test_a_plateau_on_another_metric_is_said(args, keeps):
    found = recipe.recipe({"lr_scheduler": "reduce_lr_on_plateau", "lr": [0.5]} | args, None, 1)
    assert found.keeps_best == keeps
    assert any("here it follows the loss without smoothing" in sentence for sentence in found.lost) != keeps


@pytest.mark.parametrize(
    ("begins", "rates"), [(0, [0.005, 0.0005]), (1, [0.05, 0.005]), (-1, [0.5, 0.5]), (None, [0.5, 0.5])]
)
def test_rates_are_shrunk_from_the_epoch_on_that_fairseq_says(begins, rates):
    """lr[-1] * shrink^(epoch + 1 - force_anneal) from that epoch on; epochs count from 1, and 0 is one of them."""
    found = recipe.recipe({"lr": [0.5], "lr_shrink": 0.1, "force_anneal": begins, "lr_scheduler": "fixed"}, None, 1)
    early = recipe.recipe({"lr": [0.5], "force_anneal": begins}, None, 1).training["schedule"]["force_anneal"]
    assert early == (1 if begins == 1 else None)  # versions without kinds of schedules took 0 for never
    cfg = build(Config, tiny.values() | {"training": {"schedule": found.training["schedule"]}}).training.schedule
    ours = [schedule.rate(cfg, schedule.start(cfg), step=9, epoch=epoch) for epoch in (1, 2)]
    assert ours == pytest.approx(rates)


def test_what_cannot_be_kept_is_said():
    args = {"optimizer": "adagrad", "weight_decay": 1e-4, "sentence_avg": True, "lr_scheduler": "tri_stage"}
    args |= {"batch_size": 64, "max_sentences": -1}
    found = recipe.recipe(args | {"warmup_updates": 9, "lr": [0.5]}, 0.125, 1)
    assert found.training["schedule"] == {"kind": "fixed", "rates": [0.125]}
    told = "; ".join(found.lost)
    for part in (
        "the optimiser 'adagrad' is not supported",
        "gradients were averaged over sentences",
        "the schedule 'tri_stage' with its arguments is not supported; the learning rate would stay at 0.125",
        "batch_size 64 has no counterpart; here only data.batch.tokens limits the size of a batch",
    ):
        assert part in told


COSINE = {"lr_scheduler": "cosine", "lr": [1e-3], "min_lr": 1e-5, "warmup_updates": 10, "lr_period_updates": 90}
RESTART = "after 100 updates fairseq restarts the cosine from 0.0005; here the learning rate would stay at 1e-05"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            {"criterion": "label_smoothed_cross_entropy_with_alignment", "label_smoothing": 0.1},
            "the criterion 'label_smoothed_cross_entropy_with_alignment' is not supported; training would use "
            "cross_entropy",
        ),
        (
            {"ignore_prefix_size": 2},
            "the loss left out the first 2 tokens of each target (ignore_prefix_size); here it counts them",
        ),
        (
            {"left_pad_target": "True"},  # a text in some versions
            "targets were padded on the left (left_pad_target); here they are padded on the right",
        ),
        ({"left_pad_target": "False"}, None),
        (
            {"lr_scheduler": "inverse_sqrt", "lr": [0.1], "warmup_updates": 9, "warmup_init_lr": 0.3},
            "warmup_init_lr 0.3 is above the learning rate 0.1; here training would start at 0.1",
        ),
        (
            {"lr_scheduler": "inverse_sqrt", "lr": [0.1]},
            "the schedule 'inverse_sqrt' with its arguments is not supported; the learning rate would stay at 0.1",
        ),
        (COSINE | {"lr_shrink": 0.5}, RESTART),
        (COSINE | {"lr_shrink": 0.5, "max_update": 101}, RESTART),
        (COSINE | {"lr_shrink": 0.5, "t_mult": 1e6}, RESTART),
        (COSINE | {"lr_shrink": 0.5, "max_update": 100}, None),
        (
            COSINE | {"t_mult": 2},
            "the schedule 'cosine' with its arguments is not supported; the learning rate would stay at 0.001",
        ),
    ],
)
def test_each_loss_is_one_sentence(args, told):
    found = recipe.recipe(args, None, 1)
    assert found.lost == ([] if told is None else [told])
    build(Config, tiny.values() | {"training": found.training})


def test_a_cosine_of_older_versions_goes_down_from_max_lr_to_lr():
    args = {"lr_scheduler": "cosine", "warmup_updates": 10, "lr_period_updates": 90, "min_lr": 1e-9}
    expected = {"kind": "cosine", "warmup": 10, "steps": 100, "initial": 1e-9, "rate": 1e-3, "minimum": 1e-9}
    assert recipe.recipe(args | {"lr": [1e-3]}, None, 1).training["schedule"] == expected
    older = recipe.recipe(args | {"lr": [1e-7], "max_lr": 1e-3}, None, 1).training["schedule"]
    assert older == expected | {"initial": 1e-7, "minimum": 1e-7}


@pytest.mark.parametrize("minimum", [0.0, 1e-5])
def test_a_cosine_written_stays_at_its_minimum_in_fairseq(minimum):
    """fairseq's cycles, walked one by one: each is `t_mult` times as long and `lr_shrink` times as high."""
    cfg = CosineConfig(rate=5e-4, warmup=10, steps=100, initial=1e-6, minimum=minimum)
    args = recipe.args_of_training(build(Config, tiny.values() | {"training": {"schedule": cfg}}))
    for step in (10, 11, 50, 99, 100, 101, 150, 190, 5000):
        left, period, shrink = step - args["warmup_updates"], args["lr_period_updates"], 1.0
        while left >= period:
            left, period, shrink = left - period, period * args["t_mult"], shrink * args["lr_shrink"]
        low, high = args["min_lr"] * shrink, args["lr"][0] * shrink
        found = low + (high - low) * (1 + math.cos(math.pi * left / period)) / 2
        assert found == pytest.approx(schedule.rate(cfg, schedule.start(cfg), step=step, epoch=1), rel=1e-6, abs=1e-18)


def test_tokens_of_a_batch_are_those_of_all_devices():
    args = {"max_tokens": 4000, "distributed_world_size": 8, "update_freq": "[2]"}
    assert recipe.recipe(args, None, 1).batch == {"tokens": 32000, "accumulate": 2}


@pytest.mark.parametrize(("epoch", "expected"), [(1, 8), (2, 4), (3, 1), (9, 1)])
def test_batches_of_an_update_are_those_of_the_epoch_that_continues(epoch, expected):
    found = recipe.recipe({"update_freq": [8, 4, 1, 1]}, None, epoch)
    assert found.batch == {"accumulate": expected}
    changes = [f"update_freq [8, 4, 1, 1] changes after epoch {epoch}; here it would stay at {expected}"]
    assert found.lost == (changes if epoch < 3 else [])
