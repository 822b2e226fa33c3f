"""Convert between fairseq's training arguments and our data and training configuration."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from convs2s_jax.core.errors import shown
from convs2s_jax.interop.fairseq import values
from convs2s_jax.interop.fairseq.values import Rule, checked
from convs2s_jax.training.optimizer import AdamConfig, AdamWConfig
from convs2s_jax.training.run.config import Config, TrainingConfig
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.schedule import CosineConfig, FixedConfig, InverseSqrtConfig, PlateauConfig

_RATE, _SHARE = values.number(0, 1e6), values.number(0, 1)
_RATE_OR_NONE, _COUNT = values.number(-1, 1e6), values.whole(-1, values.MOST_STEPS)
RULES: dict[str, Rule] = {
    **dict.fromkeys(("source_lang", "target_lang"), values.language),
    **dict.fromkeys(("lr_scheduler", "optimizer", "criterion", "best_checkpoint_metric"), values.text),
    **dict.fromkeys(("lr_shrink", "momentum", "label_smoothing", "adam_eps"), _SHARE),
    **dict.fromkeys(("warmup_init_lr", "min_lr", "stop_min_lr", "max_lr"), _RATE_OR_NONE),
    **dict.fromkeys(("force_anneal", "warmup_updates", "lr_patience"), _COUNT),
    **dict.fromkeys(("max_tokens", "batch_size", "max_sentences"), _COUNT),
    "lr": values.items(_RATE),
    "lr_period_updates": values.number(-1, values.MOST_STEPS),
    "t_mult": values.number(-1, 1e6),
    "max_update": values.number(-1, 1e18),
    "clip_norm": values.number(-1e6, 1e6),
    "adam_betas": values.items(_SHARE, 2, 2),
    "weight_decay": _RATE,
    "sentence_avg": values.flag,
    "left_pad_target": lambda name, value: values.flag(name, values.spelled(value)),  # 'False' in some versions
    "ignore_prefix_size": _COUNT,
    "seed": values.whole(-values.MOST_STEPS, values.MOST_STEPS),
    "distributed_world_size": values.whole(-1, 2**20),
    "update_freq": values.items(values.whole(1, 2**20)),
}
"""The training arguments that are used. In many of them, -1 stands for none."""
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
      args: arguments of the checkpoint, all optional.
      rate: learning rate of its last update, used if the schedule is not supported; None if unknown.
      epoch: the epoch to continue with, from 1.

    Raises:
      UserError: an argument violates its rule.
    """
    args = checked(args, RULES)
    lost: list[str] = []
    training: dict[str, Any] = {"schedule": _schedule(args, rate, lost)}
    if "clip_norm" in args:
        training["clip"] = max(0, args["clip_norm"])  # fairseq clips if it is above 0
    criterion = args.get("criterion", "cross_entropy")
    if criterion == "label_smoothed_cross_entropy":
        training["label_smoothing"] = args.get("label_smoothing", 0.0)
    if criterion not in CRITERIA:
        lost.append(f"the criterion '{criterion}' is not supported; training would use cross_entropy")
    ignored = args.get("ignore_prefix_size", 0)
    if ignored > 0:
        lost.append(
            f"the loss left out the first {ignored} tokens of each target (ignore_prefix_size); here it counts them"
        )
    if args.get("left_pad_target"):
        lost.append("targets were padded on the left (left_pad_target); here they are padded on the right")
    optimizer = args.get("optimizer", "nag")
    if optimizer == "nag":
        training["optimizer"] = {"kind": "nesterov", "momentum": args.get("momentum", 0.99)}
    elif optimizer == "adam":
        betas = args.get("adam_betas", (0.9, 0.999))
        training["optimizer"] = {"kind": "adam", "b1": betas[0], "b2": betas[1], "eps": args.get("adam_eps", 1e-8)}
    else:
        lost.append(f"the optimiser '{optimizer}' is not supported; training would use the default")
    if args.get("weight_decay") and "optimizer" in training:
        training["optimizer"]["weight_decay"] = args["weight_decay"]
    elif args.get("weight_decay"):
        lost.append(f"weight_decay {args['weight_decay']} belongs to that optimiser and is dropped with it")
    if args.get("sentence_avg"):
        lost.append("gradients were averaged over sentences; here they are averaged over tokens")
    metric = args.get("best_checkpoint_metric", "loss")
    unsmoothed = criterion in CRITERIA and not training.get("label_smoothing")
    same = metric == "loss" and unsmoothed and not args.get("sentence_avg")
    plain = (same or metric == "nll_loss") and ignored <= 0
    if training["schedule"]["kind"] == "plateau" and not plain:
        known = criterion in CRITERIA and ignored <= 0
        loss = "loss, smoothed or per sentence" if known else "loss of another kind"
        what = loss if metric == "loss" else f"metric '{metric}'"
        lost.append(f"the learning rate followed the validation {what}; here it follows the loss without smoothing")
    return Recipe(training, _batch(args, epoch, lost), abs(args.get("seed") or 1), plain, lost)


def args_of_training(cfg: Config) -> dict[str, Any]:
    """Convert a configuration to fairseq's training arguments, with which `fairseq-train` continues."""
    training, batch = cfg.training, cfg.data.batch
    criterion = "label_smoothed_cross_entropy" if training.label_smoothing else "cross_entropy"
    return {
        "task": "translation",
        "left_pad_source": True,
        "left_pad_target": False,
        "seed": cfg.seed,
        "criterion": criterion,
        "sentence_avg": False,
        "clip_norm": training.clip,
        "max_tokens": batch.tokens,
        "update_freq": [batch.accumulate],
        "max_epoch": training.max_epochs or 0,
        "max_update": training.max_steps or 0,
        "patience": (training.patience if training.best_metric == LOSS else None) or -1,
        "weight_decay": training.optimizer.weight_decay,
        **({"label_smoothing": training.label_smoothing} if training.label_smoothing else {}),
        **_optimizer_args(training),
        **_schedule_args(training.schedule),
    }


def names(training: TrainingConfig) -> dict[str, str]:
    """The classes of criterion and optimiser by which fairseq recognises a state that it can resume."""
    return {
        "criterion_name": f"{'LabelSmoothed' if training.label_smoothing else ''}CrossEntropyCriterion",
        "optimizer_name": "FairseqAdam" if isinstance(training.optimizer, AdamConfig | AdamWConfig) else "FairseqNAG",
    }


def _schedule(args: Mapping[str, Any], rate: float | None, lost: list[str]) -> dict[str, Any]:
    rates = args.get("lr") or [rate or 0.25]
    kind, shrink = args.get("lr_scheduler", "fixed"), args.get("lr_shrink", 0.1)
    warmup = max(0, args.get("warmup_updates", 0))
    initial = args.get("warmup_init_lr", -1)
    warming = {"rate": rates[0], "warmup": warmup, "initial": max(0.0, initial)}
    if kind == "inverse_sqrt" and warmup:
        return {"kind": "inverse_sqrt", **_bounded(warming, "lr", lost)}
    period, grows, last = args.get("lr_period_updates") or 0, args.get("t_mult", 1), args.get("max_update", 0)
    if period <= 0:
        period = last - warmup
    if kind == "cosine" and warmup and period > 0 and grows in (1, _FLAT):
        minimum = args.get("min_lr") or 0.0
        if args.get("max_lr"):  # in these versions `lr` is the minimum rate
            warming["rate"], minimum = args["max_lr"], rates[0]
        if initial < 0:
            warming["initial"] = minimum
        warming = _bounded(warming, "max_lr" if args.get("max_lr") else "lr", lost)
        steps, again = warmup + round(period), warming["rate"] * shrink
        stays = grows == _FLAT and math.isclose(again, minimum)
        if not stays and not 0 < last <= steps:
            lost.append(
                f"after {steps} updates fairseq restarts the cosine from {again:g}; here the learning rate would stay "
                f"at {minimum:g}"
            )
        return {"kind": "cosine", **warming, "steps": steps, "minimum": minimum}
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
    if warmup:
        lost.append(f"warmup_updates {warmup} has no counterpart in this schedule")
    if kind == "reduce_lr_on_plateau":
        least = args.get("stop_min_lr") or args.get("min_lr") or -1
        patience = max(0, args.get("lr_patience", 0)) + 1
        minimum = least if least > 0 else _NEVER
        return {"kind": "plateau", "rate": rates[0], "shrink": shrink, "patience": patience, "minimum": minimum}
    without = ""
    if kind in ("inverse_sqrt", "cosine"):
        period_given = "lr_period_updates, or a max_update above warmup_updates,"
        missing = "warmup_updates" if not warmup else period_given if period <= 0 else ""
        without = f" without {missing}" if missing else f" with t_mult {grows:g}"
    lost.append(
        f"the schedule '{kind}'{without} is not supported; the learning rate would stay at {rate or rates[0]:g}"
    )
    return {"kind": "fixed", "rates": [rate or rates[0]]}


def _bounded(warming: dict[str, Any], name: str, lost: list[str]) -> dict[str, Any]:
    """A warm-up that does not begin above its end, the argument `name`."""
    rate, initial = warming["rate"], warming["initial"]
    if initial > rate:
        lost.append(
            f"warmup_init_lr {initial:g} is above {name} {rate:g}; here the learning rate would start at {rate:g}"
        )
    return {**warming, "initial": min(initial, rate)}


def _batch(args: Mapping[str, Any], epoch: int, lost: list[str]) -> dict[str, Any]:
    """Convert batch settings. fairseq counts tokens per device, we count those of the whole batch."""
    batch: dict[str, Any] = {}
    if args.get("max_tokens", 0) > 0:
        batch["tokens"] = args["max_tokens"] * max(1, args.get("distributed_world_size", 1))
    for name in ("batch_size", "max_sentences"):  # the later and the earlier name
        if args.get(name, 0) > 0:
            lost.append(
                f"{name} {args[name]} has no counterpart; here only data.batch.tokens limits the size of a batch"
            )
            break
    if "update_freq" in args:
        every = args["update_freq"]
        later = every[min(epoch, len(every)) - 1 :]
        batch["accumulate"] = later[0]
        if len(set(later)) > 1:
            lost.append(f"update_freq {shown(every)} changes after epoch {epoch}; here it would stay at {later[0]}")
    return batch


def _optimizer_args(training: TrainingConfig) -> dict[str, Any]:
    cfg = training.optimizer
    if isinstance(cfg, AdamConfig | AdamWConfig):
        return {"optimizer": "adam", "adam_betas": str((cfg.b1, cfg.b2)), "adam_eps": cfg.eps}
    return {"optimizer": "nag", "momentum": cfg.momentum}


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
