"""The figures of a sweep: weak and strong scaling, memory, communication."""

import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from convs2s_jax.core.config import check
from convs2s_jax.core.files import replacing
from convs2s_jax.scaling.sweep import Row
from convs2s_jax.training.mesh import AXES

FORMATS = ("png", "svg")
ALONE = "one chip"


class Figure(NamedTuple):
    """A figure over the number of chips.

    Attributes:
      title: above it.
      unit: of the vertical axis; in it {counts} is what a step counts, as target tokens.
      value: of a row.
      batch: rows to show: "each" (the same tokens for each part of the rows), "all" (the same in all) or "" for both.
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
            "Weak scaling: the same tokens for each part of the rows",
            "efficiency, %",
            lambda row: 100 * row["efficiency"],
            "each",
        ),
        "strong": Figure("Strong scaling: the same batch", "{counts}/s", lambda row: row["tokens_per_s"], "all", True),
        "memory": Figure("Memory of a chip, at most", "GB", lambda row: row["resident_bytes"] / 1e9, "", True),
        "communication": Figure(
            "Exchanges and copies to the host that nothing hides",
            "% of the step",
            lambda row: 100 * row["exposed_s"] / row["step_s"],
            "",
        ),
    }
)


def check_installed() -> None:
    """Raise UserError without matplotlib: before the plans are made, which may take hours."""
    check(
        importlib.util.find_spec("matplotlib") is not None,
        "matplotlib is not installed, and figures are drawn by it: pip install '.[plan]', or --nofigures",
    )


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write each figure that has rows, as PNG and SVG. Returns the files."""
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
            path = folder / f"{name}.{kind}"
            with replacing(path) as part:
                canvas.savefig(part, format=kind, dpi=150)
            written.append(path)
    return written


def series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by what is the same in them but the number of chips: chip, way, slices, tokens, and all axes but one.

    The label has the axis that grows, and the sizes of the others. A row can be in several lines, as 2 x 2 where either
    axis is fixed. A single chip begins each line of its chip, way and tokens.
    """
    several = len({row["length"] for row in rows}) > 1
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        slices = f", {row['slices']} slices" if row["slices"] > 1 else ""
        unit = "for each part of the rows" if row["batch"] == "each" else "in all"
        length = f", length {row['length']}" if several else ""
        rest = f"{row['parallel']}{slices}, {row['budget']:,} tokens {unit}{length}"
        groups.setdefault((row["topology"].partition(":")[0], rest), []).append(row)
    return {
        f"{chip} {mesh}, {rest}": line for (chip, rest), group in groups.items() for mesh, line in _lines(group).items()
    }


def _lines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows in which one axis of the mesh grows, by the mesh in words; a row that is in no such line is alone in one."""
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
    """The axes of a mesh that have several chips, with the sizes of those that do not grow: "data x fsdp 2"."""
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
