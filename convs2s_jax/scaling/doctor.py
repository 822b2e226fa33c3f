"""Checks of all processes before a long run on many machines: versions, devices, data, workdir, clocks and rates."""

import contextlib
import os
import platform
import shutil
import socket
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError, counted
from convs2s_jax.core.places import joined, scheme_of
from convs2s_jax.data import parallel_text
from convs2s_jax.scaling import chips, rates
from convs2s_jax.training.mesh import slice_numbers
from convs2s_jax.training.run import mirror, run_folder
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import fingerprint_of_text
from convs2s_jax.training.run.processes import distributed

Facts = Mapping[str, Any]
PACKAGES = ("convs2s_jax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")
CLOCK = 1.0
"""Seconds by which clocks may differ, since file times and logs of different machines are compared."""
SLOW = 0.8
"""Fraction of the median product rate below which a process is reported."""
SLOW_EXCHANGE = 0.25
"""Fraction of the published rate of a link, or of the network, below which an all-reduce is reported (not measured)."""
SPLITS = ("train", "valid", "test")


class Finding(NamedTuple):
    """A sentence for the user, and whether it reports a problem."""

    sentence: str
    wrong: bool = False


def facts(cfg: Config | None, place: str) -> Facts:
    """Collect what this process sees. All processes call it together.

    Args:
      cfg: the configuration whose data is read and hashed, or None.
      place: workdir of a run, a path or an address; "" for none.
    """
    local = jax.local_devices()
    mesh = Mesh(np.asarray(local), ("all",))
    data, unread = ({}, {}) if cfg is None else _splits(cfg)
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
        "slices": sorted(set(slice_numbers(local))),
        "workdir": probe(place) if place else None,
        "data": data,
        "unread": unread,
        "product_rate": rates.product_rate(mesh, "float32"),
    }


def exchange() -> float | None:
    """Measure the bytes/s that a device sends in an all-reduce over all devices; None for one device.

    All processes call it together.
    """
    devices = jax.devices()
    return rates.exchange_rate(Mesh(np.asarray(devices), ("all",))) if len(devices) > 1 else None


def findings(seen: Sequence[Facts], bandwidth: float | None) -> list[Finding]:
    """Return sentences about what the processes see.

    Args:
      seen: facts of each process, in order.
      bandwidth: as `exchange` returns it.
    """
    kinds = Counter[str]()
    for each in seen:
        kinds.update(each["devices"])
    what = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    processes, devices_in_all = counted(len(seen), "process", "processes"), counted(sum(kinds.values()), "device")
    found = [Finding(f"{processes} with {devices_in_all}: {what}")]
    found += [Finding(f"process {each['process']} on {each['host']}: {_devices(each)}") for each in seen]
    found += _versions(seen)
    devices = [_devices(each) for each in seen]
    found += _differences(seen, "devices", devices, "give each process the same number", told=False)
    found += _clocks(seen)
    found += _workdirs(seen)
    found += [*_unread(seen), *_data(seen), *_slow(seen), *_exchange(seen, kinds, bandwidth)]
    return found


def _differences(
    seen: Sequence[Facts], what: str, values: Sequence[str], remedy: str, *, told: bool = True
) -> list[Finding]:
    """Return a sentence about values, one for each process, that should be the same."""
    first = values[0]
    odd = [(each["process"], value) for each, value in zip(seen, values, strict=True) if value != first]
    if not odd:
        return [Finding(f"{what}: {first}")] if told else []
    return [
        Finding(
            f"{what}: process {odd[0][0]} has {odd[0][1]}, process {seen[0]['process']} has {first}"
            f"{f' ({len(odd)} differ)' if len(odd) > 1 else ''}; {remedy}",
            wrong=True,
        )
    ]


def _unread(seen: Sequence[Facts]) -> list[Finding]:
    """Return a sentence for each reason why a process cannot read splits of the data."""
    reasons: dict[str, list[tuple[int, str]]] = {}
    for each in seen:
        for split, reason in each["unread"].items():
            reasons.setdefault(reason, []).append((each["process"], split))
    found = []
    for reason, places in reasons.items():
        first = places[0][0]
        splits = ", ".join(split for process, split in places if process == first)
        others = len({process for process, _ in places}) - 1
        also = f", nor can {counted(others, 'other process', 'other processes')}" if others else ""
        found.append(Finding(f"process {first} cannot read the data ({splits}){also}: {reason}", wrong=True))
    return found


def _data(seen: Sequence[Facts]) -> list[Finding]:
    """Return sentences about whether all processes that can read a split have the same data."""
    found = []
    for name in SPLITS:
        if readers := [each for each in seen if name in each["data"]]:
            checksums = [each["data"][name] for each in readers]
            found += _differences(readers, f"{name} data", checksums, "copy the same files")
    return found


def _versions(seen: Sequence[Facts]) -> list[Finding]:
    """Return one sentence for all versions that agree, and one for each that differs."""
    names = sorted({name for each in seen for name in each["versions"]})
    found = [
        _differences(seen, name, [each["versions"].get(name, "none") for each in seen], "install the same version")
        for name in names
    ]
    odd = [one for each in found for one in each if one.wrong]
    same = [one.sentence.replace(": ", " ") for each in found for one in each if not one.wrong]
    return [Finding(f"versions: {', '.join(same)}"), *odd]


def _clocks(seen: Sequence[Facts]) -> list[Finding]:
    apart = max(each["clock"] for each in seen) - min(each["clock"] for each in seen)
    if len(seen) == 1:
        return []
    if apart > CLOCK:
        return [Finding(f"clocks are {apart:.1f} s apart; synchronise them with NTP", wrong=True)]
    return [Finding(f"clocks are at most {apart:.2f} s apart, including the time of a barrier")]


def _workdirs(seen: Sequence[Facts]) -> list[Finding]:
    if seen[0]["workdir"] is None:
        return []
    for each in seen:
        if each["workdir"]["error"]:
            return [Finding(f"process {each['process']}: {each['workdir']['error']}", wrong=True)]
    found = min((each["workdir"] for each in seen), key=lambda one: one["free"])
    there = "" if seen[0]["workdir"]["there"] else " does not exist yet (a run would create it)"  # as process 0 saw it
    store = " for a copy on each machine; it can be listed, read and written" if scheme_of(found["path"]) else ""
    return [Finding(f"workdir: {found['path']}{there}, {found['free'] / 1e9:.1f} GB free{store}")]


def _slow(seen: Sequence[Facts]) -> list[Finding]:
    middle = float(np.median([each["product_rate"] for each in seen]))
    told = [Finding(f"a float32 product runs at {middle / 1e9:,.0f} GFLOP/s on a device (median over processes)")]
    for each in seen:
        if each["product_rate"] < SLOW * middle:
            told.append(
                Finding(
                    f"process {each['process']} on {each['host']} computes at {each['product_rate'] / 1e9:,.0f} "
                    "GFLOP/s; look for other programs, or for an overheated device",
                    wrong=True,
                )
            )
    return told


def _exchange(seen: Sequence[Facts], kinds: Mapping[str, int], bandwidth: float | None) -> list[Finding]:
    """Compare the rate of an all-reduce with that of the links or network, if the table of chips contains it."""
    if bandwidth is None:
        return [Finding("a single device does not communicate")]
    told = f"an all-reduce over all devices sends {bandwidth / 1e9:.2f} GB/s from each"
    kind = next(iter(kinds))
    chip = chips.of_device(kind)
    if chip is None:
        return [Finding(told)]
    hosts, slices = {each["host"] for each in seen}, {number for each in seen for number in each["slices"]}
    by_network = len(slices) > 1 if chip.axes else len(hosts) > 1
    within = sum(kinds.values()) // len(slices if chip.axes else hosts)  # they send their shards of the array together
    rate = chip.network * within if by_network else chip.link
    if not rate:
        return [Finding(told)]
    together = f"the {within} {chip.name} of a {'slice' if chip.axes else 'machine'} together"
    where = f"the network of {together}" if by_network else f"one link of a {chip.name}"
    told += f", where {where} has {rate / 1e9:.4g} GB/s in each direction"
    if bandwidth >= SLOW_EXCHANGE * min(rate, chip.link):
        return [Finding(told)]
    look = "a network interface that is slow or not used" if by_network else "a link that is down"
    return [Finding(f"{told}; look for other programs on the devices, and for {look}", wrong=True)]


def _devices(each: Facts) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in each["devices"].items())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _splits(cfg: Config) -> tuple[dict[str, str], dict[str, str]]:
    """Return a checksum of the lines of each split, and for each split that cannot be read, the reason."""
    data, unread = {}, {}
    for name in SPLITS:
        try:
            optional = name == "test" or (name == "valid" and cfg.data.hold_out == 0)
            text = parallel_text.read(cfg.data, name, optional=optional)
            data[name] = fingerprint_of_text(text) or "none"
        except UserError as error:
            unread[name] = str(error)
    return data, unread


def probe(workdir: str) -> dict[str, Any]:
    """Return what this process finds at a workdir. All processes call it together.

    Args:
      workdir: path or address.

    Returns:
      JSON values: "path"; "there", whether it exists; "free", free bytes for the run's files on this machine; "error",
      a sentence that explains why a run could not use it, or "".
    """
    try:
        there, free = _address(workdir.rstrip("/")) if scheme_of(workdir) else _folder(Path(workdir))
    except UserError as error:
        return {"path": workdir, "there": False, "free": 0, "error": str(error)}
    return {"path": workdir, "there": there, "free": free, "error": ""}


def _folder(workdir: Path) -> tuple[bool, int]:
    """Return whether a folder existed, and its free bytes. UserError unless all processes share it and can write it."""
    with contextlib.ExitStack() as stack:
        was_there = distributed.primary_only("workdir made", lambda: _made(workdir, stack))
        distributed.agree_on_folder(workdir)
        refused, free = None, 0
        try:
            free = _tried_to_write(workdir)
        except UserError as error:
            refused = error
        was_there = distributed.from_primary(bool(was_there))  # no process is still writing when process 0 removes it
        if refused:
            raise refused
        return was_there, free


def _made(workdir: Path, stack: contextlib.ExitStack) -> bool:
    """Create a folder until the stack closes; return whether it existed before."""
    with run_folder.writing(workdir):
        was_there = run_folder.provide(workdir, stack)
    _tried_to_write(workdir)
    return was_there


def _tried_to_write(workdir: Path) -> int:
    """Try to write to a folder and return its free bytes."""
    with run_folder.writing(workdir):
        with tempfile.TemporaryFile(dir=workdir) as file:
            file.write(b"\n")
        return shutil.disk_usage(workdir).free


def _address(address: str) -> tuple[bool, int]:
    """Return whether a store has objects below an address, and the free bytes for their copy on this machine.

    As in training, all processes list it and only process 0 writes. UserError if they cannot.
    """
    copy = mirror.folder_of(address, os.environ)
    try:
        free = shutil.disk_usage(next(path for path in (copy, *copy.parents) if path.exists())).free
        there = bool(stores.names(address))
        if distributed.is_primary():
            _try_object(joined(address, f"doctor-{uuid.uuid4().hex}"))
    except OSError as error:
        raise stores.unusable("--workdir", address, error) from error
    return there, free


def _try_object(address: str) -> None:
    """Write, read and delete an object. Raises OSError."""
    try:
        stores.write(address, b"convs2s scale doctor\n")
        stores.read(address)
    except BaseException:
        with contextlib.suppress(OSError):
            stores.delete(address)
        raise
    stores.delete(address)
