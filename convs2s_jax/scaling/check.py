"""Measure updates on the attached devices and compare them with their plan."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.data.shapes import Shape
from convs2s_jax.nn.types import Key, Tree
from convs2s_jax.scaling import chips, rates
from convs2s_jax.scaling.plan import Plan
from convs2s_jax.scaling.programs import Compiled
from convs2s_jax.scaling.topology import Topology
from convs2s_jax.training import dispatch, sharding
from convs2s_jax.training import mesh as meshes
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs import abstract_batch, program_key, state_program
from convs2s_jax.training.run.reports.measures import device_memory
from convs2s_jax.training.step import TrainState

WARM_UP = 2
"""Number of updates before the first one that is measured."""
LEARNING_RATE = 1e-4


class Measured(NamedTuple):
    """One quantity, planned and measured.

    Attributes:
      name: what is measured, with the shape of the batch.
      unit: "s" or "B".
      planned: value from the plan.
      values: measurements.
    """

    name: str
    unit: str
    planned: float
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the measurements."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the interquartile range, as a fraction of the median; 0 for one measurement."""
        if len(self.values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / 2 / self.median if self.median else 0.0

    @property
    def error(self) -> float:
        """median / planned - 1: positive if the plan was too fast, or too low in memory."""
        return self.median / self.planned - 1 if self.planned else 0.0


def attached_topology(count: int | None = None) -> Topology:
    """Return the attached devices of all processes, or the first `count` of them. Memory is what JAX may use.

    Raises:
      UserError: there are fewer, or there are several processes and `count` is not the number of all devices.
    """
    devices = jax.devices()[:count]
    check(count is None or len(devices) == count, f"--devices={count}: only {len(devices)} are attached; use fewer")
    check(
        len(devices) == jax.device_count() or jax.process_count() == 1,
        f"--devices={count}: several processes use all of their {jax.device_count()} devices; omit the flag",
    )
    kind = devices[0].device_kind
    chip, memory = chips.of_device(kind), rates.memory_limit(devices)
    return Topology(
        name=f"{kind}:{len(devices)}",
        chip=dataclasses.replace(chip, memory=memory) if chip and memory else chip,
        devices=tuple(devices),
    )


def measure(plan: Plan, cfg: Config, topology: Topology, *, steps: int) -> list[Measured]:
    """Run the programs of a plan on its devices and measure them.

    Args:
      plan: as `plan.make` returns it for the same configuration and devices.
      cfg: the configuration.
      topology: the attached devices.
      steps: number of updates to measure for each shape, after `WARM_UP` others.
    """
    mesh = meshes.make(cfg.mesh, topology.devices, parallel=cfg.parallel)
    state = state_program(program_key(cfg), mesh, **plan.vocabularies)(jax.random.key(0))
    found = [Measured("parameters and optimiser", "B", plan.state_bytes, (_bytes_here(state),))]
    for shape, bound in zip(plan.shapes, plan.steps, strict=True):
        gradients = [each for each in plan.programs if each.shape == shape]
        batch = random_batch(mesh, shape, plan.vocabularies)
        given, name = _bytes_here((state.params, batch)), f"arguments of gradients {shape}"
        found.append(Measured(name, "B", gradients[0].memory.arguments, (given,)))
        state, taken = _timed(gradients, plan.programs[-1], state, batch, steps + WARM_UP)
        found.append(Measured(f"step {shape}", "s", bound.seconds, tuple(taken[WARM_UP:])))
    peak = float(device_memory(mesh.local_devices).get("memory_peak", 0))
    return [*found, Measured("peak memory", "B", plan.resident, (peak,))] if peak else found


def random_batch(mesh: Mesh, shape: Shape, sizes: Mapping[str, int]) -> Batch:
    """Create a full batch of random words, or of one random label for each source."""
    abstract = abstract_batch(mesh, rows=shape.rows, src=shape.src, tgt=shape.tgt)

    def make(key: Key) -> Batch:
        keys = jax.random.split(key)
        return Batch(
            src=jax.random.randint(keys[0], abstract.src.shape, len(SPECIAL), sizes["source"]),
            tgt=jax.random.randint(keys[1], abstract.tgt.shape, len(SPECIAL), sizes["target"]),
        )

    return dispatch.jit(make, out_shardings=sharding.batch_sharding(mesh))(jax.random.key(1))


def _timed(
    gradients: Sequence[Compiled], update: Compiled, state: TrainState, batch: Batch, count: int
) -> tuple[TrainState, list[float]]:
    """Return the state after `count` updates and the seconds between their ends; the first from the return of its call.

    As in training, each update is dispatched before the previous one is awaited. Keys and learning rate are on the
    devices of all processes before the first.
    """
    place = sharding.replicated(jax.tree.leaves(state.params)[0].sharding.mesh)
    rate = dispatch.jit(lambda: jnp.float32(LEARNING_RATE), out_shardings=place)()
    keys = dispatch.jit(lambda: [*jax.random.split(jax.random.key(0), count)], out_shardings=place)()
    jax.block_until_ready((rate, keys))
    last, times = None, list[float]()
    for key in keys:
        total = dispatch.Program(gradients[0].program)(state.params, batch, key)
        for more in gradients[1:]:
            for _ in range(more.times):
                total = dispatch.Program(more.program)(total, state.params, batch, key)
        state, sums = dispatch.Program(update.program)(state, total, rate)
        jax.block_until_ready(last)
        times.append(time.perf_counter())
        last = sums
    jax.block_until_ready(last)
    times.append(time.perf_counter())
    return state, [end - begin for begin, end in itertools.pairwise(times)]


def _bytes_here(tree: Tree) -> float:
    """Return the bytes on the first device of this process."""
    return float(sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree)))
