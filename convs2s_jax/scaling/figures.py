"""The figures of a sweep: weak and strong scaling, memory, communication."""

import importlib.util
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
      unit: of the vertical axis.
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
        "strong": Figure(
            "Strong scaling: the same batch", "target tokens/s", lambda row: row["tokens_per_s"], "all", True
        ),
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
        _finish(axes, figure, [row["devices"] for points in lines.values() for row in points])
        for kind in FORMATS:
            path = folder / f"{name}.{kind}"
            with replacing(path) as part:
                canvas.savefig(part, format=kind, dpi=150)
            written.append(path)
    return written


def series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by what is the same in them but the number of chips: chip, axes of the mesh, way, slices, tokens.

    A single chip has no axes; it begins each line of its chip, way and tokens.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        axes = "x".join(axis for axis in AXES if row[axis] > 1) or ALONE
        slices = f", {row['slices']} slices" if row["slices"] > 1 else ""
        unit = "for each part of the rows" if row["batch"] == "each" else "in all"
        chip = row["topology"].partition(":")[0]
        found.setdefault(f"{chip} {axes}, {row['parallel']}{slices}, {row['budget']:,} tokens {unit}", []).append(row)
    alone = {label: rows for label, rows in found.items() if f" {ALONE}, " in label}
    lines = {label: rows for label, rows in found.items() if label not in alone}
    for label, rows_of_one in alone.items():
        before, _, after = label.partition(f" {ALONE}, ")
        begun = [name for name in lines if name.startswith(f"{before} ") and name.endswith(f", {after}")]
        for name in begun:
            lines[name] = rows_of_one + lines[name]
        if not begun:
            lines[label] = rows_of_one
    return lines


def _finish(axes: Any, figure: Figure, devices: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(devices)), [str(count) for count in sorted(set(devices))])
    axes.set_xlabel("chips")
    axes.set_ylabel(figure.unit)
    axes.set_title(figure.title)
    if figure.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
