"""Checks of all processes before a long run on many machines: versions, devices, clocks and rates.

Configuration, data and workdir are compared by training itself, before its first update.
"""

import platform
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.scaling import chips, rates
from convs2s_jax.training.run.processes import distributed

Facts = Mapping[str, Any]
PACKAGES = ("convs2s_jax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")
CLOCK = 1.0
"""Seconds by which clocks may differ, since file times and logs of different machines are compared."""
SLOW = 0.8
"""Fraction of the median product rate below which a process is reported."""


class Finding(NamedTuple):
    """A sentence for the user, and whether it reports a problem."""

    sentence: str
    wrong: bool = False


def facts() -> Facts:
    """Collect what this process sees. All processes call it together."""
    local = jax.local_devices()
    distributed.barrier("clock")
    return {
        "clock": time.time(),
        "process": jax.process_index(),
        "host": socket.gethostname(),
        "versions": {"Python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "devices": ", ".join(f"{n} x {kind}" for kind, n in Counter(each.device_kind for each in local).items()),
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
