"""Memory of the devices, as their runtime reports it."""

from collections.abc import Iterable
from typing import Any

FIELDS = {"memory": "bytes_in_use", "memory_peak": "peak_bytes_in_use"}
"""Name of a metric -> name in the statistics of a device."""


def device_memory(devices: Iterable[Any]) -> dict[str, int]:
    """Bytes in use now, and the most since the start, on the device of this process that has most of either.

    Args:
      devices: of this process, such as `jax.local_devices()`.

    Returns:
      By the name of the metric; without those that no device reports. CPUs report none.
    """
    found = [device.memory_stats() or {} for device in devices]
    reported = {name: [stats[field] for stats in found if field in stats] for name, field in FIELDS.items()}
    return {name: max(numbers) for name, numbers in reported.items() if numbers}
