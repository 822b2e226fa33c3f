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
    data, unread = ({}, {}) if cfg is None else splits(cfg)
    distributed.barrier("clock")
    return {
        "clock": time.time(),
        "process": jax.process_index(),
        "host": socket.gethostname(),
        "versions": {"Python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "devices": ", ".join(f"{n} x {kind}" for kind, n in Counter(each.device_kind for each in local).items()),
        "workdir": probe(place) if place else None,
        "data": data,
        "unread": unread,
        "product_rate": rates.product_rate(Mesh(np.asarray(local), ("all",)), "float32"),
    }


def exchange() -> str:
    """Measure what a device sends in an all-reduce over all devices, and compare it with the published rates.

    All processes call it together. Returns a sentence.
    """
    devices = jax.devices()
    if len(devices) == 1:
        return "a single device does not communicate"
    rate = rates.exchange_rate(Mesh(np.asarray(devices), ("all",)))
    told = f"an all-reduce over {len(devices)} devices sends {rate / 1e9:.2f} GB/s from each"
    chip = chips.of_device(devices[0].device_kind)
    if chip is None:
        return told
    return f"{told}; a link of a {chip.name} has {chip.link / 1e9:.4g} GB/s, its network {chip.network / 1e9:.4g} GB/s"


def findings(seen: Sequence[Facts]) -> list[Finding]:
    """Return sentences about the facts of each process, given in order."""
    return [
        *(Finding(f"process {each['process']} on {each['host']}: {each['devices']}") for each in seen),
        *_versions(seen),
        *_differences(seen, "devices", [each["devices"] for each in seen], "give each process the same number"),
        *_clocks(seen),
        *_workdirs(seen),
        *_data(seen),
        *_slow(seen),
    ]


def _differences(seen: Sequence[Facts], what: str, values: Sequence[str], remedy: str) -> list[Finding]:
    """Return a sentence about values, one for each process, that should be the same."""
    odd = [(each["process"], value) for each, value in zip(seen, values, strict=True) if value != values[0]]
    if not odd:
        return [Finding(f"{what}: {values[0]}")]
    process, value = odd[0]
    others = f" ({len(odd)} differ)" if len(odd) > 1 else ""
    told = f"{what}: process {process} has {value}, process {seen[0]['process']} has {values[0]}{others}; {remedy}"
    return [Finding(told, wrong=True)]


def _versions(seen: Sequence[Facts]) -> list[Finding]:
    """Return one sentence for all versions that agree, and one for each that differs."""
    found = [
        finding
        for name in seen[0]["versions"]
        for finding in _differences(seen, name, [each["versions"][name] for each in seen], "install the same version")
    ]
    same = ", ".join(one.sentence.replace(": ", " ") for one in found if not one.wrong)
    return [Finding(f"versions: {same}"), *(one for one in found if one.wrong)]


def _clocks(seen: Sequence[Facts]) -> list[Finding]:
    apart = max(each["clock"] for each in seen) - min(each["clock"] for each in seen)
    if apart > CLOCK:
        return [Finding(f"clocks are {apart:.1f} s apart; synchronise them with NTP", wrong=True)]
    return [Finding(f"clocks are at most {apart:.2f} s apart, including the time of a barrier")]


def _workdirs(seen: Sequence[Facts]) -> list[Finding]:
    if seen[0]["workdir"] is None:
        return []
    for each in seen:
        if each["workdir"]["error"]:
            return [Finding(f"process {each['process']}: {each['workdir']['error']}", wrong=True)]
    path, there = seen[0]["workdir"]["path"], seen[0]["workdir"]["there"]
    new = "" if there else " does not exist yet (a run would create it)"
    free = min(each["workdir"]["free"] for each in seen) / 1e9
    store = " for a copy on each machine; it can be listed, read and written" if scheme_of(path) else ""
    return [Finding(f"workdir: {path}{new}, {free:.1f} GB free{store}")]


def _data(seen: Sequence[Facts]) -> list[Finding]:
    """Return a sentence for each reason why splits cannot be read, and on whether those who read a split agree."""
    found, reasons = [], dict[str, list[Facts]]()
    for each in seen:
        for reason in dict.fromkeys(each["unread"].values()):
            reasons.setdefault(reason, []).append(each)
    for reason, (first, *others) in reasons.items():
        names = ", ".join(name for name, why in first["unread"].items() if why == reason)
        also = f", nor can {counted(len(others), 'other process', 'other processes')}" if others else ""
        found.append(Finding(f"process {first['process']} cannot read the data ({names}){also}: {reason}", wrong=True))
    for name in SPLITS:
        if readers := [each for each in seen if name in each["data"]]:
            checksums = [each["data"][name] for each in readers]
            found += _differences(readers, f"{name} data", checksums, "copy the same files")
    return found


def _slow(seen: Sequence[Facts]) -> list[Finding]:
    middle = float(np.median([each["product_rate"] for each in seen]))
    return [
        Finding(f"a float32 product runs at {middle / 1e9:,.0f} GFLOP/s on a device (median over processes)"),
        *(
            Finding(
                f"process {each['process']} on {each['host']} computes at {each['product_rate'] / 1e9:,.0f} GFLOP/s; "
                "look for other programs, or for an overheated device",
                wrong=True,
            )
            for each in seen
            if each["product_rate"] < SLOW * middle
        ),
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def splits(cfg: Config) -> tuple[dict[str, str], dict[str, str]]:
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
    found = {"path": workdir, "there": False, "free": 0, "error": ""}
    try:
        found["there"], found["free"] = (_address if scheme_of(workdir) else _folder)(workdir.rstrip("/"))
    except UserError as error:
        found["error"] = str(error)
    return found


def _folder(place: str) -> tuple[bool, int]:
    """Return whether a folder existed, and its free bytes. UserError unless all processes share it and can write it."""
    workdir = Path(place)

    def made() -> bool:
        with run_folder.writing(workdir):
            was_there = run_folder.provide(workdir, stack)
            with tempfile.TemporaryFile(dir=workdir) as file:
                file.write(b"\n")
        return was_there

    with contextlib.ExitStack() as stack:
        was_there = distributed.primary_only("workdir made", made)
        distributed.agree_on_folder(workdir)  # each process has written there
        free = shutil.disk_usage(workdir).free
        return distributed.from_primary(bool(was_there)), free  # none is still writing when process 0 removes it


def _address(address: str) -> tuple[bool, int]:
    """Return whether a store has objects below an address, and the free bytes for their copy on this machine.

    As in training, all processes list it and only process 0 writes. UserError if they cannot.
    """
    copy = mirror.folder_of(address, os.environ)
    tried = joined(address, f"doctor-{uuid.uuid4().hex}")
    try:
        free = shutil.disk_usage(next(path for path in (copy, *copy.parents) if path.exists())).free
        there = bool(stores.names(address))
        if distributed.is_primary():
            stores.write(tried, b"convs2s scale doctor\n")
            try:
                stores.read(tried)
            finally:
                stores.delete(tried)
    except OSError as error:
        raise stores.unusable("--workdir", address, error) from error
    return there, free
