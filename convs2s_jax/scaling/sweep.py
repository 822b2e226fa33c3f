"""Plan all combinations of devices, slices, meshes, `parallel` and batches. Each plan is a file, to resume a sweep."""

import csv
import dataclasses
import importlib.util
import io
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jax

from convs2s_jax.core.config import build, check, to_dict
from convs2s_jax.core.errors import Tell, UserError, did_you_mean, located
from convs2s_jax.core.files import read_json, replace_file, replacing
from convs2s_jax.core.packages import versions
from convs2s_jax.scaling import chips, plan, topology
from convs2s_jax.scaling.chips import CHIPS
from convs2s_jax.scaling.topology import device_count
from convs2s_jax.training.mesh import AXES, MeshConfig, Parallel, shape
from convs2s_jax.training.run.checkpoints.digest import digest_of_record
from convs2s_jax.training.run.config import Config

Row = dict[str, Any]
CASES, SETTINGS = "cases", "settings.json"
OPTIONS = (
    *("jax_optimization_level", "jax_memory_fitting_level", "jax_exec_time_optimization_effort"),
    *("jax_memory_fitting_effort", "jax_default_matmul_precision"),
)
"""JAX settings that change programs. Not every version of JAX has all of them."""
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
NO_MATTER = r"--xla_force_host_platform_device_count\S*"
"""A flag that does not change programs."""
FIGURE = ("sweep.png", "sweep.svg")
COLUMNS = (
    *("topology", "slices", "devices", "data", "fsdp", "tensor", "parallel", "batch", "budget", "length", "tokens"),
    *("counts", "step_s", "tokens_per_s", "efficiency", "mfu"),
    *("compute_s", "memory_s", "links_s", "host_s", "exposed_s"),
    *("resident_bytes", "state_bytes", "sent_bytes", "fits", "exact", "compile_s", "compile_processor_s", "refused"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan of a sweep.

    Attributes:
      topology: name of the devices.
      slices: number of slices.
      mesh: size of each axis; as requested if it does not fit the devices.
      parallel: how an update is parallelised.
      tokens: tokens of a batch.
      each: whether `tokens` is per row shard (weak scaling) instead of in total (strong scaling).
      length: length of sources and targets.
    """

    topology: str
    slices: int
    mesh: tuple[int, int, int]
    parallel: str
    tokens: int
    each: bool
    length: int

    @property
    def name(self) -> str:
        """Name of its file."""
        batch = f"{'each' if self.each else 'all'}{self.tokens}x{self.length}"
        mesh = ".".join(map(str, self.mesh))
        return f"{self.topology.replace(':', '-')}_{self.slices}_{mesh}_{self.parallel}_{batch}"

    @property
    def available(self) -> int:
        """Number of devices of the topology over all slices."""
        return self.slices * device_count(self.topology)


def cases(
    topologies: Sequence[str],
    slices: Sequence[int],
    meshes: Sequence[str],
    ways: Sequence[str],
    *,
    tokens: Sequence[int],
    tokens_per_chip: Sequence[int],
    length: int,
) -> list[Case]:
    """Return all combinations, with equal ones (such as all meshes of one chip) once, including those that do not fit.

    Raises:
      UserError: a mesh is not three numbers, or a topology or one of `ways` does not exist.
    """
    for way in ways:
        check(way in get_args(Parallel), f"--ways contains '{way}'{did_you_mean(way, get_args(Parallel))}")
    asked = [_mesh(text) for text in meshes]
    batches = [(each, False) for each in tokens] + [(each, True) for each in tokens_per_chip]
    found = [
        Case(
            topology=t,
            slices=s,
            mesh=_fitted(m, s * device_count(t)),
            parallel=way,
            tokens=number,
            each=each,
            length=length,
        )
        for t, s, m, way, (number, each) in itertools.product(topologies, slices, asked, ways, batches)
    ]
    return list(dict.fromkeys(found))


def settings_of(cfg: Config, sizes: Mapping[str, int], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the plans of a table have in common, as JSON values: configuration, vocabularies, compilers, rates.

    Args:
      cfg: the configuration, in which a sweep replaces the mesh sizes and `parallel`.
      sizes: vocabulary sizes.
      environment: environment variables of this process.
    """
    mesh = dataclasses.replace(cfg.mesh, data=-1, fsdp=1, tensor=1)
    compilers = [name for name in ("libtpu", chips.PLUGIN) if importlib.util.find_spec(name) is not None]
    return {
        "config": to_dict(dataclasses.replace(cfg, mesh=mesh, parallel="jit")),
        "vocabulary": dict(sizes),
        "versions": versions("convs2s_jax", "jax", *compilers),
        "options": {name: str(jax.config.values.get(name)) for name in OPTIONS},
        "flags": {name: re.sub(NO_MATTER, "", environment.get(name, "")).split() for name in VARIABLES},
        "chips": {name: {**vars(chip), "peaks": dict(chip.peaks)} for name, chip in CHIPS.items()},
    }


def run(
    cfg: Config,
    wanted: Sequence[Case],
    folder: Path,
    sizes: Mapping[str, int],
    tell: Tell,
    save: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Make the plans that the folder does not contain yet, and return the rows of all its plans, those wanted first.

    Plans are stored by the digest of `settings_of`, so a table never mixes configurations, compilers or rates.

    Args:
      cfg: the configuration. Mesh sizes and `parallel` come from the cases.
      wanted: cases.
      folder: folder of the plans.
      sizes: vocabulary sizes (`configured.vocabularies`).
      tell: called with a sentence for each case.
      save: called after each change of the folder, which a killed sweep continues from.

    Raises:
      UserError: libtpu is missing.
    """
    topology.check_compilers([case.topology for case in wanted])
    settings = settings_of(cfg, sizes, os.environ)
    plans = folder / CASES / f"{digest_of_record(settings):x}"
    plans.mkdir(parents=True, exist_ok=True)
    replace_file(plans / SETTINGS, json.dumps(settings, indent=1) + "\n")
    found = list[Row]()
    for number, case in enumerate(wanted, 1):
        place, told = plans / f"{case.name}.json", "from an earlier run"
        made = read_json(place, remedy="delete it to plan it again") if place.exists() else None
        if made is None or set(made) == {"case", "refused"}:  # the reason may be fixed by now
            try:
                made, told = {"case": dataclasses.asdict(case), **_plan(cfg, case, sizes)}, "planned"
            except KeyboardInterrupt:
                tell(f"interrupted after {len(found)} of {len(wanted)} cases; the same command continues")
                raise
            replace_file(place, json.dumps(made, indent=1) + "\n")
            save()
        row = row_of(case, made)
        result = f"refused: {row['refused']}" if row["refused"] else f"{1e3 * row['step_s']:.2f} ms a step"
        tell(f"{number} of {len(wanted)}: {case.name}: {told}; {result}")
        found.append(row)
    for place in sorted(plans.glob("*_*.json")):  # cases of earlier commands
        if place.stem not in {case.name for case in wanted}:
            made = read_json(place, remedy="delete it")
            found.append(row_of(Case(**{**made["case"], "mesh": tuple(made["case"]["mesh"])}), made))
    return with_efficiency(found)


def row_of(case: Case, made: Row) -> Row:
    """Build a row of the table from a plan in JSON."""
    row: Row = dict.fromkeys(COLUMNS, "")
    row |= {
        "topology": case.topology,
        "slices": case.slices,
        "devices": math.prod(case.mesh) if min(case.mesh) > 0 else case.available,
        "parallel": case.parallel,
        "batch": "each" if case.each else "all",
        "budget": case.tokens,
        "length": case.length,
        "refused": made.get("refused", ""),
        "fits": made.get("fits"),
        "exact": made.get("exact"),
        **dict(zip(AXES, case.mesh, strict=True)),
    }
    if row["refused"]:
        return row
    bound, programs = made["steps"][0], made["programs"]
    compiled = [*programs, *([made["start"]] if made.get("start") else [])]
    return row | {
        "tokens": made["tokens"][0],
        "counts": made["counts"],
        "step_s": bound["seconds"],
        "tokens_per_s": bound["tokens_per_second"],
        "mfu": bound["mfu"],
        "compute_s": bound["compute"],
        "memory_s": bound["memory"],
        "links_s": bound["links"],
        "host_s": bound["host"],
        "exposed_s": bound["exposed"],
        "resident_bytes": made["resident"],
        "state_bytes": made["state_bytes"],
        "sent_bytes": sum(p["times"] * c["wire"] for p in programs for c in p["collectives"]),
        "compile_s": sum(p["seconds"] for p in compiled),
        "compile_processor_s": sum(p["processor_seconds"] for p in compiled),
    }


def with_efficiency(rows: Sequence[Row]) -> list[Row]:
    """Add the efficiency: tokens/s per device, relative to the fewest devices with the same chip, tokens and length."""

    def series(row: Row) -> tuple[Any, ...]:
        return row["topology"].partition(":")[0], row["batch"], row["budget"], row["length"]

    def each(row: Row) -> float:
        return row["tokens_per_s"] / row["devices"]

    planned = [row for row in rows if not row["refused"]]
    found = []
    for row in rows:
        if row["refused"]:
            found.append(row)
            continue
        same = [other for other in planned if series(other) == series(row)]
        fewest = min(other["devices"] for other in same)
        best = max(each(other) for other in same if other["devices"] == fewest)
        found.append(row | {"efficiency": each(row) / best})
    return found


def as_csv(rows: Sequence[Row]) -> str:
    """Format the table as CSV, with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """Write a figure of the throughput of a chip over the number of chips, and return the names of its files.

    A line connects the fastest meshes of each number of chips, for rows that differ in the sizes of the same mesh axes.
    """
    from matplotlib.figure import Figure  # it takes a second to import

    planned = [row for row in rows if not row["refused"]]
    if not planned:
        return []
    canvas = Figure(figsize=(7, 4.5), layout="constrained")
    axes = canvas.subplots()
    for label, line in series(planned).items():
        axes.plot(*zip(*sorted(line.items()), strict=True), "o-", label=label)
    devices = sorted({row["devices"] for row in planned})
    axes.set_xscale("log", base=2)
    axes.set_xticks(devices, [str(count) for count in devices])
    axes.set(xlabel="chips", ylabel=f"{planned[0]['counts']}/s of a chip", ylim=(0, None), title="Throughput by chips")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    for name in FIGURE:
        with replacing(folder / name) as part:
            canvas.savefig(part, format=name.rpartition(".")[2], dpi=150)
    return [*FIGURE]


def series(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Return the lines of the figure by their label: number of chips -> the largest throughput of a chip."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        axes = " x ".join(axis for axis in AXES if row[axis] > 1) or "one chip"
        slices = f", {row['slices']} slices" if row["slices"] > 1 else ""
        unit = "per row shard" if row["batch"] == "each" else "in total"
        chip, batch = row["topology"].partition(":")[0], f"{row['budget']:,} tokens {unit}, length {row['length']}"
        line = found.setdefault(f"{chip}, {axes}, {row['parallel']}{slices}, {batch}", {})
        line[row["devices"]] = max(line.get(row["devices"], 0.0), row["tokens_per_s"] / row["devices"])
    return found


def _plan(cfg: Config, case: Case, sizes: Mapping[str, int]) -> Row:
    """Plan a case and return it as JSON, or the reason why it cannot be planned."""
    try:
        devices = topology.named(case.topology, slices=case.slices)
        where = case.topology if case.slices == 1 else f"{case.slices} slices of {case.topology}"
        with located(f"--meshes has {'.'.join(map(str, case.mesh))}, on {where}"):
            shape(_config(case.mesh), case.available)
        mesh = {**to_dict(cfg.mesh), **dict(zip(AXES, case.mesh, strict=True))}
        changed = build(Config, {**to_dict(cfg), "mesh": mesh, "parallel": case.parallel})
        batch: dict[str, Any] = {"tokens_per_chip": case.tokens} if case.each else {"tokens": case.tokens}
        made = plan.make(changed, devices, lengths=[case.length], sizes=sizes, **batch)
    except UserError as error:
        return {"refused": str(error)}
    return plan.as_json(made)


def _mesh(text: str) -> tuple[int, int, int]:
    """Parse the sizes of "data.fsdp.tensor"."""
    axes = text.split(".")
    check(
        len(axes) == len(AXES) and all(re.fullmatch("-?[0-9]{1,9}", size) for size in axes),
        f"--meshes has '{text}': write data.fsdp.tensor, as in 16.1.1, or -1.1.1, where -1 uses the rest",
    )
    data, fsdp, tensor = map(int, axes)
    with located(f"--meshes has '{text}'"):
        _config((data, fsdp, tensor))
    return data, fsdp, tensor


def _config(mesh: tuple[int, int, int]) -> MeshConfig:
    data, fsdp, tensor = mesh
    return MeshConfig(data=data, fsdp=fsdp, tensor=tensor)


def _fitted(mesh: tuple[int, int, int], devices: int) -> tuple[int, int, int]:
    """Replace -1 in the sizes of a mesh on this number of devices. `_plan` rejects sizes that do not fit."""
    try:
        return shape(_config(mesh), devices)
    except UserError:
        return mesh
