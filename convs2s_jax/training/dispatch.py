"""Compiled programs of a mesh, called so that XLA's CPU client does not deadlock.

A call of a compiled program returns before its results are ready, so that the host can continue. XLA's CPU client
allows 32 programs in progress on a device. Each further one blocks a thread of the client's pool until one of them has
ended. The same pool runs the programs, and has one thread for each device (or core, if there are more cores). Devices
in a collective hold their threads until all of them have arrived. So with 34 programs in progress, some devices wait
for others that get no thread, and after a timeout XLA aborts the process.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from convs2s_jax.core.compiler_options import LITTLE_OPTIMISATION, OnCpu, unless_set
from convs2s_jax.nn.types import Tree


class Program:
    """A compiled program; each thread has at most one in progress on several CPU devices of a process.

    On one device, and on GPUs and TPUs, calls do not wait.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        """Wrap the result of `jax.jit` or `jax.pmap`; its attributes, such as `lower`, are those of this program."""
        self._compiled = compiled
        functools.update_wrapper(self, compiled)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program. Its results are ready on return if they are on several CPU devices of this process."""
        results = self._compiled(*args, **kwargs)
        return jax.block_until_ready(results) if on_several_cpu_devices(results) else results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


def jit(function: Callable[..., Any], **options: Any) -> Program:
    """`jax.jit` for programs that may contain collectives; `options` are those of `jax.jit`."""
    return Program(jax.jit(function, **options))


def jit_with_barriers(
    function: Callable[..., Any],
    mesh: Mesh | None,
    *,
    compiler_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """`jit` of a function with `lax.optimization_barrier`s, which also take effect on CPU.

    XLA's CPU compiler removes barriers before it fuses operations (in jax 0.10; that of 0.12 keeps them). Then the
    elementwise parts of all layers of a deep stack are fused into one another: each is recomputed from the products of
    all layers before it. The pass that removes barriers, `cse_barrier_expander`, is disabled here. JAX accepts compiler
    options at the outermost `jax.jit` only, so within another transformation the function is compiled without them;
    results are the same.

    Args:
      function: the function to compile.
      mesh: the devices it runs on; None for one device.
      compiler_options: further ones, used on CPU unless XLA_FLAGS sets them.
      **options: of `jax.jit`.
    """
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    plain = jit(function, **options)
    if device.platform != "cpu":
        return plain
    chosen = {"xla_disable_hlo_passes": "cse_barrier_expander", **unless_set(compiler_options or {})}
    return OnCpu(plain, jit(function, compiler_options=chosen, **options), is_cpu=lambda: True)


def jit_once(function: Callable[..., Any], mesh: Mesh | None, **options: Any) -> Callable[..., Any]:
    """`jit_with_barriers` for a program that runs only once: it is compiled with little optimisation."""
    return jit_with_barriers(function, mesh, compiler_options=LITTLE_OPTIMISATION, **options)


def pmap(function: Callable[..., Any], **options: Any) -> Program:
    """`jax.pmap`, as `jit`."""
    return Program(jax.pmap(function, **options))


def on_several_cpu_devices(results: Tree) -> bool:
    """Whether the results of a program are on several CPU devices of this process, judged by the first leaf."""
    first = next(iter(jax.tree.leaves(results)), None)
    if not isinstance(first, jax.Array) or isinstance(first, jax.core.Tracer):
        return False
    devices: list[Any] = list(first.sharding.addressable_devices)
    return len(devices) > 1 and devices[0].platform == "cpu"
