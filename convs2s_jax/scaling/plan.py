"""The plan of an update: what each chip holds, computes and exchanges, and the time that a roofline gives it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.data.shapes import Shape
from convs2s_jax.nn.types import Tree
from convs2s_jax.scaling import programs, rates, roofline
from convs2s_jax.scaling.chips import Chip
from convs2s_jax.scaling.programs import Compiled, TooLargeError
from convs2s_jax.scaling.roofline import Work
from convs2s_jax.scaling.topology import Topology
from convs2s_jax.training import mesh as meshes
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs.configured import vocabularies
from convs2s_jax.training.run.programs.run_programs import check_rules, placed_state, program_key
from convs2s_jax.training.run.shared_programs import forget


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What an update costs on some devices.

    Attributes:
      topology: name of the devices.
      slices: number of slices.
      chip: the rates that were used.
      exact: whether the programs were compiled for these chips themselves; else memory and asynchronous exchanges are
        those of virtual devices.
      mesh: size of each axis.
      parallel: the way the update is spread.
      dtype: of products.
      parameters: number of parameters.
      state_bytes: of parameters and optimiser, on one chip.
      resident: most bytes of a chip's memory at one time: a program's, and of the state what it is not given.
      start: the program of the state before the first update.
      programs: those of an update, the optimiser's part last.
      shapes: of the batches.
      counts: what `tokens` are: "target tokens", or "texts" of a classifier.
      tokens: how many an update on full batches has, for each shape.
      steps: the bound of an update, for each shape.
      refused: which program does not fit and what the compiler said of it; "" where it compiled.
      efficiency: tokens/s of a chip as a share of those of a single chip, for each shape; () where it was not planned.
      too_large_alone: why a single chip cannot hold the rows that each part of the mesh's rows has; "" where it can, or
        was not planned. Where its programs compiled all the same, there is an efficiency.
      run_shapes: most shapes of batches that a run of the configuration has.
    """

    topology: str
    slices: int
    chip: Chip
    exact: bool
    mesh: Mapping[str, int]
    parallel: str
    dtype: str
    parameters: int
    state_bytes: int
    resident: int = 0
    start: Compiled | None = None
    programs: tuple[Compiled, ...] = ()
    shapes: tuple[Shape, ...] = ()
    counts: str = "target tokens"
    tokens: tuple[int, ...] = ()
    steps: tuple[roofline.Step, ...] = ()
    refused: str = ""
    efficiency: tuple[float, ...] = ()
    too_large_alone: str = ""
    run_shapes: int = 0

    @property
    def all_programs(self) -> list[Compiled]:
        """That of the state before the first update, and those of an update."""
        return [*([self.start] if self.start else []), *self.programs]

    @property
    def run_processor_seconds(self) -> float | None:
        """Processor seconds to compile a run's first state and updates, its shapes like those planned; None if refused.

        Validation and search compile programs of their own.
        """
        if self.refused:
            return None
        of_shapes = sum(each.processor_seconds for each in self.programs if each.shape)
        rest = sum(each.processor_seconds for each in self.all_programs if not each.shape)
        return rest + (of_shapes / len(self.shapes) * self.run_shapes if self.shapes else 0)

    @property
    def devices(self) -> int:
        """Number of chips."""
        return math.prod(self.mesh.values())

    @property
    def fits(self) -> bool | None:
        """Whether the memory of a chip is enough; None where its size is not known."""
        if self.refused:
            return False
        return self.resident <= self.chip.memory if self.chip.memory else None


def make(
    cfg: Config,
    topology: Topology,
    *,
    lengths: Sequence[int | tuple[int, int]],
    tokens: int | None = None,
    tokens_per_chip: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Plan:
    """Compile an update for the devices and add up what it costs.

    Args:
      cfg: the configuration, whose mesh takes all devices of the topology, or as many as it names.
      topology: devices.
      lengths: of the batches' sources and targets, one number for both or two; shapes that come out equal are one.
      tokens: budget of a batch on all chips together; None for the configuration's.
      tokens_per_chip: the same for each part of the rows, in place of `tokens`.
      sizes: entries of the vocabularies (`configured.vocabularies`); None for those that the configuration asks for.

    Raises:
      UserError: the mesh or a length does not fit, or the table of chips lacks a rate.
    """
    mesh = meshes.make(cfg.mesh, topology.devices, parallel=cfg.parallel)
    check_rules(cfg)
    if tokens_per_chip:
        tokens = tokens_per_chip * meshes.row_shards(mesh)
    shapes = [programs.shape_of(cfg, each, tokens or cfg.data.batch.tokens, mesh) for each in lengths]
    return _of_shapes(cfg, topology, mesh, list(dict.fromkeys(shapes)), sizes)


def _of_shapes(
    cfg: Config, topology: Topology, mesh: Mesh, shapes: Sequence[Shape], sizes: Mapping[str, int] | None
) -> Plan:
    """The plan of updates on batches of these shapes."""
    forget()  # what an earlier plan has compiled would take no time here
    chip = topology.chip or rates.measured(list(mesh.devices.flat), cfg.model.dtype)
    sizes = sizes or vocabularies(cfg)
    state = placed_state(program_key(cfg), mesh, **sizes)
    plan = Plan(
        topology=topology.name,
        slices=topology.slices,
        chip=chip,
        exact=topology.exact,
        mesh=dict(mesh.shape),
        parallel=cfg.parallel,
        dtype=cfg.model.dtype,
        parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)),
        state_bytes=bytes_on_a_device(state),
        run_shapes=cfg.data.batch.shapes,
        counts="texts" if cfg.classifies else "target tokens",
    )
    try:
        compiled = programs.compile_update(cfg, mesh, shapes, sizes, topology.platform)
        start = programs.compile_start(cfg, mesh, sizes)
    except TooLargeError as error:
        return dataclasses.replace(plan, shapes=tuple(shapes), refused=str(error))
    plan = dataclasses.replace(plan, start=start, resident=start.memory.peak)
    return _costed(plan, cfg, topology, mesh, shapes, compiled, bytes_on_a_device(state.params))


def one_chip(cfg: Config, plan: Plan, alone: Topology, *, sizes: Mapping[str, int] | None = None) -> Plan:
    """The plan of a single chip with the rows that each part of the mesh's rows has, to compare with.

    Args:
      cfg: the configuration of `plan`; its mesh is not used.
      plan: of many chips.
      alone: a topology of one chip of the same kind.
      sizes: as for `plan`.
    """
    parts = math.prod(plan.mesh[axis] for axis in meshes.ROWS)
    shapes = [shape._replace(rows=shape.rows // parts) for shape in plan.shapes]
    changed = dataclasses.replace(cfg, mesh=meshes.MeshConfig())
    return _of_shapes(changed, alone, meshes.make(changed.mesh, alone.devices), shapes, sizes)


def compared(plan: Plan, base: Plan) -> Plan:
    """The plan with its efficiency against that of a single chip, and whether that can hold its part.

    Args:
      plan: of many chips, not refused.
      base: of a single chip for the same lengths (`one_chip`).
    """
    reason = base.refused
    if not reason and base.fits is False:
        reason = f"{base.resident / 1e9:.3g} GB, and it has {base.chip.memory / 1e9:.3g} GB"
    pairs = zip(plan.steps, base.steps, strict=True) if base.steps else ()
    each = tuple(step.tokens_per_second / plan.devices / alone.tokens_per_second for step, alone in pairs)
    return dataclasses.replace(plan, efficiency=each, too_large_alone=reason)


def _costed(
    plan: Plan,
    cfg: Config,
    topology: Topology,
    mesh: Mesh,
    shapes: Sequence[Shape],
    compiled: Sequence[Compiled],
    params_bytes: int,
) -> Plan:
    """The plan with what its programs cost."""
    order = dict(zip(topology.devices, topology.places(), strict=True))
    places = [order[device] for device in mesh.devices.flat]
    counted = [shape.rows * (1 if cfg.classifies else shape.tgt) for shape in shapes]
    targets = [cfg.data.batch.accumulate * count for count in counted]

    # which operations a GPU runs is not known from the program of a CPU
    chip = dataclasses.replace(plan.chip, in_turn=plan.chip.in_turn and plan.exact)

    def bound(shape: Shape, tokens: int) -> roofline.Step:
        work = [work_of(each, mesh.size) for each in compiled if each.shape in (shape, None)]
        return roofline.step(work, chip, places, dtype=plan.dtype, tokens=tokens)

    beside = plan.state_bytes - params_bytes  # gradient programs are given the parameters, not the optimiser's state
    return dataclasses.replace(
        plan,
        resident=max(plan.resident, *(each.memory.peak + (beside if each.shape else 0) for each in compiled)),
        programs=tuple(compiled),
        shapes=tuple(shapes),
        tokens=tuple(targets),
        steps=tuple(bound(shape, tokens) for shape, tokens in zip(shapes, targets, strict=True)),
    )


def work_of(compiled: Compiled, devices: int) -> Work:
    """A device's share of a program's work."""
    return Work(
        model=compiled.flops.model / devices,
        executed=compiled.flops.executed / devices,
        memory=compiled.memory_traffic,
        product_memory=compiled.product_traffic,
        copies=compiled.copies,
        collectives=compiled.collectives,
        times=compiled.times,
    )


def bytes_on_a_device(tree: Tree) -> int:
    """Bytes of the largest parts of abstract arrays that one device holds."""
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as values that JSON can hold."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if field.repr]
            return {name: plain(getattr(value, name)) for name in names}
        if hasattr(value, "_asdict"):
            return {name: plain(item) for name, item in value._asdict().items() if name != "members"}
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    found = {name: getattr(plan, name) for name in ("devices", "fits", "run_processor_seconds")}
    return {**plain(plan), **found}
