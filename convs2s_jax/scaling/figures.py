"""Figures of a sweep: weak and strong scaling, memory, communication."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from convs2s_jax.core.files import replacing
from convs2s_jax.scaling.sweep import Row
from convs2s_jax.training.mesh import AXES

FORMATS = ("png", "svg")
ALONE = "one chip"


class Figure(NamedTuple):
    """A figure over the number of chips.

    Attributes:
      title: title of the figure.
      unit: unit of the vertical axis, in which {counts} is replaced by what a step counts, such as target tokens.
      value: row -> its value.
      batch: rows to show: "each" (the same tokens per row shard), "all" (the same tokens in total) or "" for both.
      log: whether the vertical axis is logarithmic.
    """

    title: str
    unit: str
    value: Callable[[Row], float]
    batch: str
    log: bool = False


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "weak": Figure(
            "Weak scaling: the same tokens per row shard",
            "efficiency, %",
            lambda row: 100 * row["efficiency"],
            "each",
        ),
        "strong": Figure("Strong scaling: the same batch", "{counts}/s", lambda row: row["tokens_per_s"], "all", True),
        "memory": Figure("Peak memory of a chip", "GB", lambda row: row["resident_bytes"] / 1e9, "", True),
        "communication": Figure(
            "Exposed collectives and copies to the host",
            "% of the step",
            lambda row: 100 * row["exposed_s"] / row["step_s"],
            "",
        ),
    }
)


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """Write each figure that has rows, as PNG and SVG, and return the names of the files."""
    from matplotlib.figure import Figure as Canvas  # it takes a second to import

    written = []
    for name, figure in FIGURES.items():
        lines = series([row for row in rows if not row["refused"] and figure.batch in ("", row["batch"])])
        if not lines:
            continue
        canvas = Canvas(figsize=(7, 4.5), layout="constrained")
        axes = canvas.subplots()
        for label, points in lines.items():
            ordered = sorted(points, key=lambda row: row["devices"])
            axes.plot([row["devices"] for row in ordered], [figure.value(row) for row in ordered], "o-", label=label)
        shown = [row for points in lines.values() for row in points]
        _finish(axes, figure, figure.unit.format(counts=shown[0]["counts"]), [row["devices"] for row in shown])
        for kind in FORMATS:
            written.append(f"{name}.{kind}")
            with replacing(folder / written[-1]) as part:
                canvas.savefig(part, format=kind, dpi=150)
    return written


def series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows with the same chip, `parallel`, slices and tokens that differ in the size of one mesh axis only.

    The label contains the axis that grows, and the sizes of the others. A row can be in several lines, such as 2 x 2,
    where either axis can be the fixed one. A single chip starts each line with the same chip, `parallel`
    and tokens.
    """
    several = len({row["length"] for row in rows}) > 1
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        slices = f", {row['slices']} slices" if row["slices"] > 1 else ""
        unit = "per row shard" if row["batch"] == "each" else "in total"
        length = f", length {row['length']}" if several else ""
        rest = f"{row['parallel']}{slices}, {row['budget']:,} tokens {unit}{length}"
        groups.setdefault((row["topology"].partition(":")[0], rest), []).append(row)
    return {
        f"{chip} {mesh}, {rest}": line for (chip, rest), group in groups.items() for mesh, line in _lines(group).items()
    }


def _lines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows in which one mesh axis grows, by the label of the mesh. A row that fits none gets its own line."""
    found: dict[str, list[Row]] = {}
    for grows, row in itertools.product(AXES, rows):
        found.setdefault(_mesh(row, grows), []).append(row)
    found = {mesh: line for mesh, line in found.items() if len({row["devices"] for row in line}) > 1}
    alone = [row for row in rows if row["devices"] == 1]
    for row in rows:
        if row not in alone and not any(row in line for line in found.values()):
            found[_mesh(row)] = [row]
    for mesh, line in found.items():
        found[mesh] = line if line[0]["devices"] == 1 else [*alone, *line]
    return found or {ALONE: alone}


def _mesh(row: Row, grows: str = "") -> str:
    """Return a label of the mesh axes with several chips and the sizes of those that do not grow: "data x fsdp 2"."""
    return " x ".join(
        axis if axis == grows else f"{axis} {row[axis]}" for axis in AXES if axis == grows or row[axis] > 1
    )


def _finish(axes: Any, figure: Figure, unit: str, devices: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(devices)), [str(count) for count in sorted(set(devices))])
    axes.set_xlabel("chips")
    axes.set_ylabel(unit)
    axes.set_title(figure.title)
    if figure.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
