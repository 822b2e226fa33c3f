"""Learning rate schedules. They run on the host: a new rate never recompiles, and their state is one line of JSON."""

import dataclasses
import math
from typing import Literal

from convs2s_jax.core.config import check, record


@record
class PlateauConfig:
    """The paper's annealer (section 4.2): reduce the rate when validation does not improve, stop below a minimum.

    Attributes:
      rate: the learning rate at the start.
      shrink: factor by which the rate is multiplied.
      minimum: training stops when the rate falls below this.
      patience: number of validations without improvement after which the rate is reduced.
    """

    kind: Literal["plateau"] = "plateau"
    rate: float = 0.25
    shrink: float = 0.1
    minimum: float = 1e-4
    patience: int = 1

    def __post_init__(self) -> None:
        check(self.rate > 0, f"rate is {self.rate}: use more than 0")
        check(0 < self.shrink < 1, f"shrink is {self.shrink}: use a factor between 0 and 1, such as 0.1")
        check(self.minimum > 0, f"minimum is {self.minimum}: training would never stop; use 1e-4")
        check(self.patience >= 1, f"patience is {self.patience}: use 1 or more")


@record
class FixedConfig:
    """fairseq's `fixed`: a rate for each epoch; from epoch `force_anneal` on it shrinks every epoch.

    Attributes:
      rates: the learning rate of each epoch; the last one also applies to all later epochs.
      force_anneal: first epoch, counted from 1, in which the last rate is multiplied by `shrink`; each later epoch
        multiplies it once more. None for never.
      shrink: factor by which the rate is multiplied.
      warmup: number of warm-up steps, during which the rate rises linearly: n / warmup of it at step n. 0 for none.
    """

    kind: Literal["fixed"] = "fixed"
    rates: tuple[float, ...] = (0.25,)
    force_anneal: int | None = None
    shrink: float = 0.1
    warmup: int = 0

    def __post_init__(self) -> None:
        check(len(self.rates) > 0 and min(self.rates) > 0, f"rates is {self.rates}: use one or more rates above 0")
        check(0 < self.shrink <= 1, f"shrink is {self.shrink}: use a factor above 0, up to 1")
        check(
            self.force_anneal is None or self.force_anneal >= 1,
            f"force_anneal is {self.force_anneal}: use the number of an epoch, from 1",
        )
        check(self.warmup >= 0, f"warmup is {self.warmup}: use 0 steps (none) or more")


@record
class InverseSqrtConfig:
    """Linear warm-up to `rate` over `warmup` steps, then rate * sqrt(warmup / step) (Vaswani et al. 2017).

    Attributes:
      rate: the highest learning rate.
      warmup: number of warm-up steps.
      initial: the rate before the first step.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    rate: float = 5e-4
    warmup: int = 4000
    initial: float = 1e-7

    def __post_init__(self) -> None:
        check(self.rate > 0, f"rate is {self.rate}: use more than 0")
        check(self.warmup >= 1, f"warmup is {self.warmup}: use 1 step or more")
        check(0 <= self.initial <= self.rate, f"initial is {self.initial}: use 0 up to the rate, {self.rate}")


@record
class CosineConfig:
    """Linear warm-up to `rate`, then half a cosine down to `minimum` at `steps` (Loshchilov and Hutter 2017, eq. 5).

    One period, without restarts; afterwards the rate stays at `minimum`. Wu et al. 2019 use this schedule on WMT.

    Attributes:
      rate: the highest learning rate.
      warmup: number of warm-up steps.
      steps: total number of steps, including the warm-up.
      initial: the rate before the first step.
      minimum: the rate at the end.
    """

    kind: Literal["cosine"] = "cosine"
    rate: float = 1e-3
    warmup: int = 1000
    steps: int = 10_000
    initial: float = 1e-7
    minimum: float = 1e-7

    def __post_init__(self) -> None:
        check(self.rate > 0, f"rate is {self.rate}: use more than 0")
        check(self.warmup >= 1, f"warmup is {self.warmup}: use 1 step or more")
        check(self.steps > self.warmup, f"steps is {self.steps}: use more than the warm-up steps, {self.warmup}")
        check(0 <= self.initial <= self.rate, f"initial is {self.initial}: use 0 up to the rate, {self.rate}")
        check(0 <= self.minimum <= self.rate, f"minimum is {self.minimum}: use 0 up to the rate, {self.rate}")


@dataclasses.dataclass(frozen=True)
class ScheduleState:
    """State of a schedule.

    Attributes:
      rate: the current learning rate.
      best: lowest validation loss so far, in nats.
      waiting: number of validations since the best one.
      stopped: why training stops, or "".
    """

    rate: float
    best: float = math.inf
    waiting: int = 0
    stopped: str = ""


AnySchedule = PlateauConfig | FixedConfig | InverseSqrtConfig | CosineConfig


def start(cfg: AnySchedule) -> ScheduleState:
    """The state before the first step."""
    match cfg:
        case FixedConfig():
            return ScheduleState(rate=cfg.rates[0])
        case InverseSqrtConfig() | CosineConfig():
            return ScheduleState(rate=cfg.initial)
    return ScheduleState(rate=cfg.rate)


def rate(cfg: AnySchedule, state: ScheduleState, *, step: int, epoch: int) -> float:
    """Learning rate of an update; steps and epochs count from 1."""
    match cfg:
        case FixedConfig():
            found = cfg.rates[min(epoch, len(cfg.rates)) - 1]
            if cfg.force_anneal is not None and epoch >= cfg.force_anneal:
                found = cfg.rates[-1] * cfg.shrink ** (epoch + 1 - cfg.force_anneal)
            return found * step / cfg.warmup if step < cfg.warmup else found
        case InverseSqrtConfig() | CosineConfig() if step < cfg.warmup:
            return cfg.initial + (cfg.rate - cfg.initial) * step / cfg.warmup
        case InverseSqrtConfig():
            return cfg.rate * math.sqrt(cfg.warmup / step)
        case CosineConfig():
            done = min(1.0, (step - cfg.warmup) / (cfg.steps - cfg.warmup))
            return cfg.minimum + (cfg.rate - cfg.minimum) * (1 + math.cos(math.pi * done)) / 2
    return state.rate


def validated(cfg: AnySchedule, state: ScheduleState, loss: float) -> tuple[ScheduleState, str]:
    """State after a validation with this loss (nats per token), and a sentence for the log or ""."""
    if not isinstance(cfg, PlateauConfig):
        return dataclasses.replace(state, best=min(state.best, loss)), ""
    if loss < state.best:
        return dataclasses.replace(state, best=loss, waiting=0), ""
    waiting = state.waiting + 1
    if waiting < cfg.patience:
        return dataclasses.replace(state, waiting=waiting), ""
    rate = state.rate * cfg.shrink
    why = f"validation loss {loss:.4f} did not improve on {state.best:.4f}: learning rate {state.rate:g} -> {rate:g}"
    stopped = f"the learning rate fell below {cfg.minimum:g}" if rate < cfg.minimum else ""
    return dataclasses.replace(state, rate=rate, waiting=0, stopped=stopped), why
