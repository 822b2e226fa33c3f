"""Compiled programs of a mesh, called so that XLA's CPU client does not block itself.

A call of a compiled program returns before its results are there, so that the host can go on. XLA's CPU client lets 32
programs be in progress on a device. Each further one blocks a thread of the client's pool until one of them has ended.
The same pool runs the programs, and has one thread for each device (or core, if there are more cores). Devices that
exchange arrays hold their threads until all of them have arrived. So where 34 programs are in progress, some devices
wait for others that get no thread, and after a timeout XLA aborts the process.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

from convs2s_jax.nn.types import Tree


class Program:
    """A compiled program, of which at most one per thread is in progress on several CPU devices of a process.

    On one device, and on GPUs and TPUs, calls do not wait.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        """Wrap the result of `jax.jit` or `jax.pmap`; its attributes, such as `lower`, are those of this program."""
        self._compiled = compiled
        functools.update_wrapper(self, compiled)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the program, which are ready if they are on several CPU devices of this process."""
        results = self._compiled(*args, **kwargs)
        return jax.block_until_ready(results) if on_several_cpu_devices(results) else results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


def jit(function: Callable[..., Any], **options: Any) -> Program:
    """`jax.jit` for programs whose devices may exchange arrays; `options` are those of `jax.jit`."""
    return Program(jax.jit(function, **options))


def pmap(function: Callable[..., Any], **options: Any) -> Program:
    """`jax.pmap`, as `jit`."""
    return Program(jax.pmap(function, **options))


def on_several_cpu_devices(results: Tree) -> bool:
    """Whether the results of a program are on several CPU devices of this process. The first leaf tells for all."""
    first = next(iter(jax.tree.leaves(results)), None)
    if not isinstance(first, jax.Array) or isinstance(first, jax.core.Tracer):
        return False
    devices: list[Any] = list(first.sharding.addressable_devices)
    return len(devices) > 1 and devices[0].platform == "cpu"
