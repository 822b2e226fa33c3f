"""The settings that all plans in a sweep's folder must share: configuration, compilers, rates."""

import dataclasses
import importlib.util
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax

from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.versions import versions
from convs2s_jax.scaling import gpus
from convs2s_jax.scaling.chips import CHIPS
from convs2s_jax.training.run.config import Config

Facts = dict[str, Any]
OPTIONS = (
    *("jax_optimization_level", "jax_memory_fitting_level", "jax_exec_time_optimization_effort"),
    *("jax_memory_fitting_effort", "jax_default_matmul_precision"),
)
"""JAX settings that change programs. Their environment variables have the same names in capitals. Not every version of
JAX has all of them."""
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
NO_MATTER = "--xla_force_host_platform_device_count"
"""A flag that does not change programs."""


def of_plans(cfg: Config, sizes: Mapping[str, int], chips: Collection[str], environment: Mapping[str, str]) -> Facts:
    """Return what plans have in common, as JSON values.

    Args:
      cfg: the configuration, in which a sweep replaces the mesh sizes and `parallel`.
      sizes: vocabulary sizes.
      chips: names of chips. Rates that are not in the table are measured once per process.
      environment: environment variables of this process.
    """
    mesh = dataclasses.replace(cfg.mesh, data=-1, fsdp=1, tensor=1)
    return {
        "config": to_dict(dataclasses.replace(cfg, mesh=mesh, parallel="jit")),
        "vocabulary": dict(sizes),
        "versions": _versions(),
        "settings": settings(environment),
        "chips": {name: {**vars(CHIPS[name]), "peaks": dict(CHIPS[name].peaks)} for name in CHIPS if name in chips},
    }


def joined(known: Facts, about: Facts, folder: Path) -> Facts:
    """Merge the facts of the plans in a folder (`known`) with those of the plans to add.

    Raises:
      UserError: they must not be mixed.
    """
    way_out = "choose another --output, or delete the folder"
    check({*known} >= {"versions", "settings", "chips"}, f"{folder} has plans from an earlier version; {way_out}")
    check(known.get("config") == about["config"], f"{folder} has plans for another configuration; {way_out}")
    theirs, ours = known.get("vocabulary", {}), about["vocabulary"]
    check(theirs == ours, f"{folder} has plans for vocabularies of {_sizes(theirs)}, not {_sizes(ours)}; {way_out}")
    by, this = known["versions"], about["versions"]
    check(by == this, f"{folder} has plans made with {by}, but this is {this}; {way_out}")
    for name, value in about["settings"].items():
        before = known["settings"].get(name)
        check(
            before == value, f"{folder} has plans with {name} {_set(before)}, but here it is {_set(value)}; {way_out}"
        )
    for name, chip in about["chips"].items():
        rates = known["chips"].get(name, chip)
        check(rates == chip, f"{folder} has plans with other rates of {name} than the table of chips; {way_out}")
    return {**about, "chips": {**known["chips"], **about["chips"]}}


def settings(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the settings of JAX and of the compilers, None for those that are not set."""
    options = {name.upper(): jax.config.values.get(name) for name in OPTIONS}
    found = {name: None if value is None else str(value) for name, value in options.items()}
    for name in VARIABLES:
        flags = [flag for flag in environment.get(name, "").split() if not flag.startswith(NO_MATTER)]
        found[name] = " ".join(flags) or None
    return found


def _sizes(vocabulary: Mapping[str, int]) -> str:
    """Name the sizes of vocabularies: 100 (source) and 90 (target)."""
    return " and ".join(f"{size} ({side})" for side, size in vocabulary.items())


def _versions() -> str:
    """Return the versions of the packages that compile."""
    compilers = [name for name in ("libtpu", gpus.PLUGIN) if importlib.util.find_spec(name) is not None]
    return versions("convs2s_jax", "jax", *compilers)


def _set(value: str | None) -> str:
    return "unset" if value is None else f"'{value}'"
