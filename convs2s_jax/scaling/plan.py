"""Plan an update: the memory, compute and communication of each chip, and a lower bound of its time by a roofline."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.rows import round_up
from convs2s_jax.data.shapes import Shape
from convs2s_jax.scaling import programs, rates, roofline
from convs2s_jax.scaling.chips import Chip
from convs2s_jax.scaling.programs import Compiled, TooLargeError
from convs2s_jax.scaling.topology import Topology
from convs2s_jax.training import mesh as meshes
from convs2s_jax.training import sharding
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs import check_rules, placed_state, program_key, vocabulary_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The cost of an update on some devices.

    Attributes:
      topology: name of the devices.
      slices: number of slices.
      chip: the rates that were used.
      mesh: size of each axis.
      parallel: how the update is parallelised.
      dtype: dtype of products.
      vocabularies: entries of the vocabularies by side, the special symbols included.
      parameters: number of parameters.
      state_bytes: bytes of parameters and optimiser on one chip.
      resident: peak bytes of a chip's memory: those of a program, plus the part of the state that is not its argument.
      programs: the program that initialises the state, and those of an update; the optimiser's is the last.
      shapes: batch shapes.
      rows: number of rows of each batch that are not padding.
      counts: what `tokens` counts: "target tokens", or "texts" for a classifier.
      tokens: how many of these an update on full batches has, for each shape.
      steps: the bound of an update, for each shape.
      refused: which program does not fit, with the compiler's message; "" if all compiled.
    """

    topology: str
    slices: int
    chip: Chip
    mesh: Mapping[str, int]
    parallel: str
    dtype: str
    vocabularies: Mapping[str, int]
    parameters: int
    state_bytes: int
    resident: int = 0
    programs: tuple[Compiled, ...] = ()
    shapes: tuple[Shape, ...] = ()
    rows: tuple[int, ...] = ()
    counts: str = "target tokens"
    tokens: tuple[int, ...] = ()
    steps: tuple[roofline.Step, ...] = ()
    refused: str = ""

    @property
    def devices(self) -> int:
        """Number of chips."""
        return math.prod(self.mesh.values())

    @property
    def fits(self) -> bool | None:
        """Whether the memory of a chip is enough; None if its size is unknown."""
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
    vocabulary: int | None = None,
    labels: int | None = None,
    tell: Tell = lambda _: None,
) -> Plan:
    """Compile an update for the devices and add up its cost.

    Args:
      cfg: the configuration, whose mesh uses all devices of the topology, or as many as it specifies.
      topology: devices.
      lengths: source and target lengths of the batches, one number for both or two. Equal shapes are planned once.
      tokens: token budget of a batch on all chips together; None for the configuration's.
      tokens_per_chip: token budget of each row shard, in place of `tokens`.
      vocabulary: size of both vocabularies, in place of those of the configuration.
      labels: number of a classifier's labels.
      tell: receives a line before the first program is compiled.

    Raises:
      UserError: the mesh or a length does not fit, the table of chips lacks a rate, or `labels` is missing for a
        classifier, or set for another model.
    """
    check(
        labels is not None or not cfg.classifies,
        "--labels is missing: the number of a classifier's labels is known only from its training text; use --labels=2 "
        "for two",
    )
    check(labels is None or cfg.classifies, f"--labels={labels}: the model is not a classifier; remove it")
    mesh = meshes.make(cfg.mesh, topology.devices, parallel=cfg.parallel)
    check_rules(cfg)
    if tokens_per_chip:
        tokens = tokens_per_chip * sharding.row_shards(mesh)
    shapes = dict.fromkeys(programs.shape_of(cfg, each, tokens or cfg.data.batch.tokens) for each in lengths)
    tell(f"planning {topology.name}: for a large model or hundreds of devices, compiling takes minutes ...")
    chip = topology.chip or rates.measured(tuple(mesh.devices.flat), cfg.model.dtype)
    order = dict(zip(topology.devices, topology.places(), strict=True))
    places = [order[device] for device in mesh.devices.flat]
    roofline.check_network(chip, places)
    sizes = vocabulary_sizes(cfg, vocabulary, labels)
    state = placed_state(program_key(cfg), mesh, **sizes)
    plan = Plan(
        topology=topology.name,
        slices=topology.slices,
        chip=chip,
        mesh=dict(mesh.shape),
        parallel=cfg.parallel,
        dtype=cfg.model.dtype,
        vocabularies=sizes,
        parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)),
        state_bytes=sharding.stored_bytes(state)[0],
        # rows are padded as in training: to a multiple of the row shards
        shapes=tuple(shape._replace(rows=round_up(shape.rows, sharding.row_shards(mesh))) for shape in shapes),
        rows=tuple(shape.rows for shape in shapes),
        counts="texts" if cfg.classifies else "target tokens",
    )
    try:
        compiled = tuple(programs.compile_all(cfg, mesh, plan.shapes, sizes))
    except TooLargeError as error:
        return dataclasses.replace(plan, refused=str(error))
    beside = plan.state_bytes - sharding.stored_bytes(state.params)[0]  # what is no argument of gradient programs
    counts, steps = list[int](), list[roofline.Step]()
    for shape, rows in zip(plan.shapes, plan.rows, strict=True):
        counts.append(cfg.data.batch.accumulate * rows * (1 if cfg.classifies else shape.tgt))
        used = [each for each in compiled if each.shape in (shape, None)]
        steps.append(roofline.step(used, chip, places, dtype=plan.dtype, tokens=counts[-1]))
    return dataclasses.replace(
        plan,
        programs=compiled,
        resident=max(each.memory.peak + (beside if each.shape else 0) for each in compiled),
        tokens=tuple(counts),
        steps=tuple(steps),
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """Convert the plan to JSON values."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if field.repr]
            return {name: plain(getattr(value, name)) for name in names}
        if hasattr(value, "_asdict"):
            return {name: plain(item) for name, item in value._asdict().items() if name != "members"}
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    found = {name: getattr(plan, name) for name in ("devices", "fits")}
    return {**plain(plan), **found}
