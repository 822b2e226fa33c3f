"""Memory of devices: the fullest one of a process, and nothing where none is reported."""

from types import SimpleNamespace

import jax

from convs2s_jax.training.run.reports.measures import device_memory


def device(stats):
    return SimpleNamespace(memory_stats=lambda: stats)


def test_the_fullest_device_counts():
    found = device_memory(
        [device({"bytes_in_use": 5, "peak_bytes_in_use": 70}), device({"bytes_in_use": 6, "peak_bytes_in_use": 60})]
    )
    assert found == {"memory": 6, "memory_peak": 70}


def test_what_no_device_reports_is_left_out():
    assert device_memory([device(None), device({"bytes_in_use": 5})]) == {"memory": 5}
    assert device_memory(jax.local_devices()) == {}  # CPUs
