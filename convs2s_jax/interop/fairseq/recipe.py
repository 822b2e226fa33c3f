"""Convert between fairseq's training arguments and our data and training configuration."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from convs2s_jax.core.config import literal
from convs2s_jax.core.errors import shown
from convs2s_jax.training.optimizer import AdamConfig, AdamWConfig
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.schedule import CosineConfig, FixedConfig, InverseSqrtConfig, PlateauConfig

CRITERIA = ("cross_entropy", "label_smoothed_cross_entropy")
"""The losses that are converted."""
_NEVER = 1e-300
"""A learning rate that takes hundreds of reductions to reach. Without `stop_min_lr`, fairseq does not stop."""
_FLAT = 1e6
"""`t_mult` of a cosine without restarts. The second period is so long that its rate stays at its initial value."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a checkpoint was trained.

    Attributes:
      training: values for the configuration's `training`.
      batch: values for `data.batch`.
      seed: seed of the run.
      keeps_best: whether the best validation loss in its schedule is a loss as measured here.
      lost: a sentence for each setting that could not be converted.
    """

    training: dict[str, Any]
    batch: dict[str, Any]
    seed: int
    keeps_best: bool
    lost: list[str]


def recipe(args: Mapping[str, Any], rate: float | None, epoch: int) -> Recipe:
    """Convert fairseq's training arguments, except limits on epochs and updates.

    Args:
      args: arguments of the checkpoint, all optional; None counts as absent. In many of them, -1 stands for none.
      rate: learning rate of its last update, used if the schedule is not supported; None if unknown.
      epoch: the epoch to continue with, from 1.
    """
    args = {name: value for name, value in args.items() if value is not None}
    lost: list[str] = []
    training: dict[str, Any] = {"schedule": _schedule(args, rate, lost)}
    if "clip_norm" in args:
        training["clip"] = max(0, args["clip_norm"])  # fairseq clips if it is above 0
    criterion = args.get("criterion", "cross_entropy")
    if criterion == "label_smoothed_cross_entropy":
        training["label_smoothing"] = args.get("label_smoothing", 0.0)
    if criterion not in CRITERIA:
        lost.append(f"the criterion {shown(criterion)} is not supported; training would use cross_entropy")
    ignored = args.get("ignore_prefix_size", 0)
    if ignored > 0:
        lost.append(
            f"the loss left out the first {ignored} tokens of each target (ignore_prefix_size); here it counts them"
        )
    if literal(str(args.get("left_pad_target", False))):  # a text in some versions
        lost.append("targets were padded on the left (left_pad_target); here they are padded on the right")
    optimizer, decay = args.get("optimizer", "nag"), args.get("weight_decay", 0.0)
    if optimizer == "nag":
        training["optimizer"] = {"kind": "nesterov", "momentum": args.get("momentum", 0.99), "weight_decay": decay}
    elif optimizer == "adam":
        b1, b2 = literal(str(args.get("adam_betas", (0.9, 0.999))))
        eps = args.get("adam_eps", 1e-8)
        training["optimizer"] = {"kind": "adam", "b1": b1, "b2": b2, "eps": eps, "weight_decay": decay}
    else:
        lost.append(f"the optimiser {shown(optimizer)} is not supported; training would use the default")
    if args.get("sentence_avg"):
        lost.append("gradients were averaged over sentences; here they are averaged over tokens")
    metric = args.get("best_checkpoint_metric", "loss")
    unsmoothed = criterion in CRITERIA and not training.get("label_smoothing") and not args.get("sentence_avg")
    plain = (metric == "nll_loss" or (metric == "loss" and unsmoothed)) and ignored <= 0
    if training["schedule"]["kind"] == "plateau" and not plain:
        lost.append(
            f"the learning rate followed the validation metric {shown(metric)} of its criterion; here it follows the "
            "loss without smoothing"
        )
    return Recipe(training, _batch(args, epoch, lost), abs(args.get("seed") or 1), plain, lost)


def args_of_training(cfg: Config) -> dict[str, Any]:
    """Convert a configuration to fairseq's training arguments, with which `fairseq-train` continues."""
    training, batch, optimizer = cfg.training, cfg.data.batch, cfg.training.optimizer
    smoothed = training.label_smoothing > 0
    if isinstance(optimizer, AdamConfig | AdamWConfig):
        own = {"optimizer": "adam", "adam_betas": str((optimizer.b1, optimizer.b2)), "adam_eps": optimizer.eps}
    else:
        own = {"optimizer": "nag", "momentum": optimizer.momentum}
    return {
        "task": "translation",
        "left_pad_source": True,
        "left_pad_target": False,
        "seed": cfg.seed,
        "criterion": CRITERIA[smoothed],
        "sentence_avg": False,
        "clip_norm": training.clip,
        "max_tokens": batch.tokens,
        "update_freq": [batch.accumulate],
        "max_epoch": training.max_epochs or 0,
        "max_update": training.max_steps or 0,
        "patience": (training.patience if training.best_metric == LOSS else None) or -1,
        "weight_decay": optimizer.weight_decay,
        **({"label_smoothing": training.label_smoothing} if smoothed else {}),
        **own,
        **_schedule_args(training.schedule),
    }


def _schedule(args: Mapping[str, Any], rate: float | None, lost: list[str]) -> dict[str, Any]:
    found = literal(str(args.get("lr") or rate or 0.25))
    rates = list(found) if isinstance(found, list | tuple) else [found]
    kind, shrink = args.get("lr_scheduler", "fixed"), args.get("lr_shrink", 0.1)
    warmup = max(0, args.get("warmup_updates", 0))
    if kind == "inverse_sqrt" and warmup:
        return {"kind": "inverse_sqrt", **_warming(args, rates[0], 0.0, warmup, lost)}
    if kind == "cosine" and warmup:
        cosine = _cosine(args, rates[0], shrink, warmup, lost)
        if cosine is not None:
            return cosine
    if kind == "fixed":
        begins = args.get("force_anneal")
        # with 0, the first epoch is multiplied twice; in older versions, 0 meant "never"
        if begins == 0 and "lr_scheduler" in args:
            rates, begins = [rates[-1] * shrink], 1
        return {
            "kind": "fixed",
            "rates": rates,
            "force_anneal": begins if begins is not None and begins > 0 else None,
            "shrink": shrink,
            "warmup": warmup,
        }
    if kind == "reduce_lr_on_plateau":
        if warmup:
            lost.append(f"warmup_updates {warmup} has no counterpart in this schedule")
        least = args.get("stop_min_lr") or args.get("min_lr") or -1
        patience = max(0, args.get("lr_patience", 0)) + 1
        minimum = least if least > 0 else _NEVER
        return {"kind": "plateau", "rate": rates[0], "shrink": shrink, "patience": patience, "minimum": minimum}
    lost.append(
        f"the schedule {shown(kind)} with its arguments is not supported; the learning rate would stay at "
        f"{rate or rates[0]:g}"
    )
    return {"kind": "fixed", "rates": [rate or rates[0]]}


def _cosine(args: Mapping[str, Any], rate: float, shrink: float, warmup: int, lost: list[str]) -> dict[str, Any] | None:
    """fairseq's cosine without its restarts; None without a period, or if the period changes."""
    period, grows, last = args.get("lr_period_updates") or 0, args.get("t_mult", 1), args.get("max_update", 0)
    if period <= 0:
        period = last - warmup
    if period <= 0 or grows not in (1, _FLAT):
        return None
    minimum = args.get("min_lr") or 0.0
    if args.get("max_lr"):  # in these versions `lr` is the minimum rate
        rate, minimum = args["max_lr"], rate
    steps, again = warmup + round(period), rate * shrink
    stays = grows == _FLAT and math.isclose(again, minimum)
    if not stays and not 0 < last <= steps:
        lost.append(
            f"after {steps} updates fairseq restarts the cosine from {again:g}; here the learning rate would stay at "
            f"{minimum:g}"
        )
    return {"kind": "cosine", **_warming(args, rate, minimum, warmup, lost), "steps": steps, "minimum": minimum}


def _warming(args: Mapping[str, Any], rate: float, otherwise: float, warmup: int, lost: list[str]) -> dict[str, Any]:
    """A warm-up to a rate that does not begin above it. Without `warmup_init_lr` it begins at another rate."""
    initial = args.get("warmup_init_lr", -1)
    initial = otherwise if initial < 0 else initial
    if initial > rate:
        lost.append(
            f"warmup_init_lr {initial:g} is above the learning rate {rate:g}; here training would start at {rate:g}"
        )
    return {"rate": rate, "warmup": warmup, "initial": min(initial, rate)}


def _batch(args: Mapping[str, Any], epoch: int, lost: list[str]) -> dict[str, Any]:
    """Convert batch settings. fairseq counts tokens per device, we count those of the whole batch."""
    batch: dict[str, Any] = {}
    if args.get("max_tokens", 0) > 0:
        batch["tokens"] = args["max_tokens"] * max(1, args.get("distributed_world_size", 1))
    sentences = max(args.get(name, 0) for name in ("batch_size", "max_sentences"))  # the later and the earlier name
    if sentences > 0:
        lost.append(
            f"batch_size {sentences} has no counterpart; here only data.batch.tokens limits the size of a batch"
        )
    if "update_freq" in args:
        every = literal(str(args["update_freq"]))
        later = every[min(epoch, len(every)) - 1 :]
        batch["accumulate"] = later[0]
        if len(set(later)) > 1:
            lost.append(f"update_freq {shown(every)} changes after epoch {epoch}; here it would stay at {later[0]}")
    return batch


def _schedule_args(cfg: Any) -> dict[str, Any]:
    if isinstance(cfg, FixedConfig):
        values = {"lr": list(cfg.rates), "force_anneal": cfg.force_anneal, "lr_shrink": cfg.shrink}
        return {"lr_scheduler": "fixed", **values, "warmup_updates": cfg.warmup}
    if isinstance(cfg, PlateauConfig):
        values = {"lr": [cfg.rate], "lr_shrink": cfg.shrink, "lr_patience": cfg.patience - 1, "lr_threshold": 0.0}
        return {"lr_scheduler": "reduce_lr_on_plateau", **values, "stop_min_lr": cfg.minimum, "warmup_updates": 0}
    if isinstance(cfg, InverseSqrtConfig):
        values = {"lr": [cfg.rate], "warmup_updates": cfg.warmup, "warmup_init_lr": cfg.initial}
        return {"lr_scheduler": "inverse_sqrt", **values}
    if isinstance(cfg, CosineConfig):
        values = {"lr": [cfg.rate], "warmup_updates": cfg.warmup, "warmup_init_lr": cfg.initial, "min_lr": cfg.minimum}
        stays = {"lr_shrink": cfg.minimum / cfg.rate, "t_mult": _FLAT}  # fairseq restarts from the minimum
        return {"lr_scheduler": "cosine", **values, "lr_period_updates": cfg.steps - cfg.warmup, **stays}
    raise ValueError(f"schedule {cfg!r} has no counterpart in fairseq")
