"""What each process sees, and what is wrong with it, in sentences: before a long run is started on many machines."""

import platform
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import parallel_text
from convs2s_jax.scaling import chips, rates
from convs2s_jax.training.run import distributed
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.dataset import fingerprint_of_text

Facts = Mapping[str, Any]
PACKAGES = ("convs2s_jax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")
CLOCK = 1.0
"""Seconds by which clocks may differ: file times and logs of different machines are compared."""
SLOW = 0.8
"""Share of the median product rate below which a process is reported."""
SPLITS = ("train", "valid", "test")


class Finding(NamedTuple):
    """A sentence for the user, and whether it is about something that is wrong."""

    sentence: str
    wrong: bool = False


def facts(cfg: Config | None, workdir: Path | None) -> Facts:
    """What this process sees. All processes call it together.

    Args:
      cfg: the configuration whose data is read and hashed; None for none.
      workdir: folder of a run; None for none.
    """
    local = jax.local_devices()
    mesh = Mesh(np.asarray(local), ("all",))
    distributed.barrier("clock")
    return {
        "clock": time.time(),
        "process": jax.process_index(),
        "host": socket.gethostname(),
        "versions": {
            "Python": platform.python_version(),
            **{name: found for name in PACKAGES if (found := _version(name))},
        },
        "devices": dict(Counter(device.device_kind for device in local)),
        "workdir": None if workdir is None else _folder(workdir),
        "data": {} if cfg is None else {name: _hash(cfg, name) for name in SPLITS},
        "product_rate": rates.product_rate(mesh, "float32"),
    }


def exchange() -> float | None:
    """Bytes/s that a device sends in an all-reduce over all devices; None for one device. All processes call it."""
    devices = jax.devices()
    return rates.exchange_rate(Mesh(np.asarray(devices), ("all",))) if len(devices) > 1 else None


def findings(seen: Sequence[Facts], bandwidth: float | None) -> list[Finding]:
    """The sentences for what the processes see.

    Args:
      seen: facts of each process, in order.
      bandwidth: as `exchange` returns it.
    """
    kinds = Counter[str]()
    for each in seen:
        kinds.update(each["devices"])
    what = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    found = [Finding(f"{len(seen)} process(es) with {sum(kinds.values())} devices: {what}")]
    found += [Finding(f"process {each['process']} on {each['host']}: {_devices(each)}") for each in seen]
    found += _versions(seen)
    found += _differences(seen, "devices", _devices, "give each process the same number", told=False)
    found += _clocks(seen)
    found += _workdirs(seen)
    for name in seen[0]["data"]:
        found += _differences(seen, f"{name} data", partial(_data, name), "copy the same files")
    found += [*_slow(seen), *_exchange(kinds, bandwidth)]
    return found


def _differences(
    seen: Sequence[Facts], what: str, value: Callable[[Facts], str], way_out: str, *, told: bool = True
) -> list[Finding]:
    """A sentence for a value that all should have alike."""
    first = value(seen[0])
    odd = [each for each in seen if value(each) != first]
    if not odd:
        return [Finding(f"{what}: {first}")] if told else []
    return [
        Finding(
            f"{what}: process {odd[0]['process']} has {value(odd[0])}, process {seen[0]['process']} {first}"
            f"{f' ({len(odd)} differ)' if len(odd) > 1 else ''}: {way_out}",
            wrong=True,
        )
    ]


def _data(name: str, each: Facts) -> str:
    return str(each["data"][name])


def _package(name: str, each: Facts) -> str:
    return str(each["versions"].get(name, "none"))


def _versions(seen: Sequence[Facts]) -> list[Finding]:
    """One sentence for all versions that all have alike, one for each that differs."""
    names = sorted({name for each in seen for name in each["versions"]})
    found = [_differences(seen, name, partial(_package, name), "install the same") for name in names]
    odd = [one for each in found for one in each if one.wrong]
    same = [one.sentence.replace(": ", " ") for each in found for one in each if not one.wrong]
    return [Finding(f"versions: {', '.join(same)}"), *odd]


def _clocks(seen: Sequence[Facts]) -> list[Finding]:
    apart = max(each["clock"] for each in seen) - min(each["clock"] for each in seen)
    if len(seen) == 1:
        return []
    if apart > CLOCK:
        return [Finding(f"clocks are {apart:.1f} s apart: set them by NTP", wrong=True)]
    return [Finding(f"clocks are at most {apart:.2f} s apart, the time of a barrier included")]


def _workdirs(seen: Sequence[Facts]) -> list[Finding]:
    if seen[0]["workdir"] is None:
        return []
    for each in seen:
        if each["workdir"]["error"]:
            return [Finding(f"process {each['process']}: {each['workdir']['error']}", wrong=True)]
    return [Finding(f"workdir: {seen[0]['workdir']['path']}, {seen[0]['workdir']['free'] / 1e9:.1f} GB free")]


def _slow(seen: Sequence[Facts]) -> list[Finding]:
    middle = float(np.median([each["product_rate"] for each in seen]))
    told = [Finding(f"a product of float32 runs at {middle / 1e9:,.0f} GFLOP/s on a device (median over processes)")]
    for each in seen:
        if each["product_rate"] < SLOW * middle:
            told.append(
                Finding(
                    f"process {each['process']} on {each['host']} computes at {each['product_rate'] / 1e9:,.0f} "
                    "GFLOP/s: look for other programs, or for a device that is too hot",
                    wrong=True,
                )
            )
    return told


def _exchange(kinds: Mapping[str, int], bandwidth: float | None) -> list[Finding]:
    if bandwidth is None:
        return [Finding("one device exchanges nothing")]
    chip = chips.of_device(next(iter(kinds)))
    links = (
        "" if chip is None else f", where one link of a {chip.name} has {chip.link / 1e9:.0f} GB/s in each direction"
    )
    return [Finding(f"an all-reduce over all devices sends {bandwidth / 1e9:.2f} GB/s from each{links}")]


def _devices(each: Facts) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in each["devices"].items())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _folder(workdir: Path) -> dict[str, Any]:
    """Whether all processes see this folder, and may write into it."""
    try:
        distributed.primary_only("workdir", lambda: workdir.mkdir(parents=True, exist_ok=True))
        distributed.agree_on_folder(workdir)
        return {"path": str(workdir), "free": shutil.disk_usage(workdir).free, "error": ""}
    except (UserError, OSError) as error:
        return {"path": str(workdir), "free": 0, "error": str(error)}


def _hash(cfg: Config, name: str) -> str:
    """A checksum of a split's lines."""
    try:
        return fingerprint_of_text(parallel_text.read(cfg.data, name, optional=name != "train")) or "none"
    except UserError as error:
        return str(error)
