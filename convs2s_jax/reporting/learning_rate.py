"""Describe how the learning rate of a run changed, from its schedule and its log."""

from convs2s_jax.reporting.log import RateChange
from convs2s_jax.reporting.runs import Run
from convs2s_jax.training.schedule import AnySchedule, CosineConfig, FixedConfig, InverseSqrtConfig


def sentences(run: Run) -> str:
    """Describe the schedule, and the first and the last change in the log."""
    changes, said = run.log.rates, by_update(run.cfg.training.schedule)
    if changes:
        times = {1: "once", 2: "twice"}.get(len(changes), f"{len(changes)} times")
        last = f"; the last time at {changes[-1].sentence}" if len(changes) > 1 else ""
        said += f" The learning rate was {changed(changes)} {times}: at {changes[0].sentence}{last}."
    nothing = "The log records no change of the learning rate."
    if not run.log.starts:
        nothing = "There is no readable log, so it is unknown how the learning rate changed."
    return said.strip() or nothing


def by_update(cfg: AnySchedule) -> str:
    """Describe what a schedule changes at every update, which is not logged; "" if it changes nothing."""
    every = f"The {cfg.kind} schedule changes the learning rate at every update: it rises to"
    match cfg:
        case CosineConfig():
            fall = f"follows half a cosine down to {cfg.minimum:g} at step {cfg.steps:,}"
            return f"{every} {cfg.rate:g} until step {cfg.warmup:,} and then {fall}."
        case InverseSqrtConfig():
            return f"{every} {cfg.rate:g} until step {cfg.warmup:,} and then decays as 1 / sqrt(step)."
        case FixedConfig(warmup=warmup) if warmup:
            return f"The fixed schedule raises the learning rate at every update until step {warmup:,}."
        case _:
            return ""


def changed(changes: tuple[RateChange, ...]) -> str:
    """Whether rates were reduced, raised, or both."""
    if all(change.after < change.before for change in changes):
        return "reduced"
    return "raised" if all(change.after > change.before for change in changes) else "changed"
