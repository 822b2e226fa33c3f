"""Memory of the devices, as their runtime reports it."""

from collections.abc import Iterable
from typing import Any

FIELDS = {"memory": "bytes_in_use", "memory_peak": "peak_bytes_in_use"}
"""Name of a metric -> name in the statistics of a device."""


def device_memory(devices: Iterable[Any]) -> dict[str, int]:
    """Return bytes in use now, and the peak since the start, each on the device of this process with the most.

    Args:
      devices: of this process, such as `jax.local_devices()`.

    Returns:
      Bytes by metric, without metrics that no device reports. CPUs report none.
    """
    found = [device.memory_stats() or {} for device in devices]
    reported = {name: [stats[field] for stats in found if field in stats] for name, field in FIELDS.items()}
    return {name: max(numbers) for name, numbers in reported.items() if numbers}
