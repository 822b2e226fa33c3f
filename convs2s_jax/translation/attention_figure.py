"""Attention figures: a panel for each layer and one for their mean, source across and target down (appendix C).

Cells are square and have the same size in every figure, so that the label of each token can be read. A long sentence
makes a large figure. Positions are in inches.
"""

import math
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.files import replacing
from convs2s_jax.translation.layer_attention import LayerAttention

FONTS = (
    *("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC"),
    *("Source Han Sans", "IPAexGothic", "WenQuanYi Micro Hei", "Hiragino Sans", "PingFang SC", "Yu Gothic"),
    *("Microsoft YaHei", "Malgun Gothic", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS"),
)
"""Fonts for labels. Each character is drawn in the first installed font that contains it. DejaVu Sans comes with
matplotlib and covers Latin, Greek, Cyrillic, Hebrew and Arabic."""
CELL, LABEL, POINTS, GAP = 0.17, 0.075, 8, 0.25
"""Width of a cell and of a letter, size of the letters in points, and distance between panels."""
DPI, MOST_PIXELS = 150, 12000
"""Dots per inch, and the maximum number of pixels along an edge of a PNG; larger figures get fewer dots per inch."""
LONGEST = 24
"""Maximum number of letters of a label; longer tokens are truncated."""


class Panel(NamedTuple):
    """A panel.

    Attributes:
      name: caption below the panel.
      weights: [T, S], the attention weights.
    """

    name: str
    weights: np.ndarray


def panels(attention: LayerAttention, layers: Sequence[str] = ("all",)) -> list[Panel]:
    """Return the panels of a figure.

    Args:
      attention: the attention of one pair.
      layers: "all" for every layer and their mean, "mean", or names of layers, such as "layer 2", or 2 for short.

    Raises:
      UserError: there is no such layer.
    """
    check_layers(attention.names, layers)
    single = {name: [Panel(name, weights)] for name, weights in zip(attention.names, attention.layers, strict=True)}
    mean = [Panel("mean", attention.mean)]
    every = [*(panel for one in single.values() for panel in one), *(mean if len(single) > 1 else [])]
    short = {name.rpartition(" ")[2]: one for name, one in single.items()}
    known = {"all": every, "mean": mean, **short, **single}
    return [panel for name in layers for panel in known[name]]


def check_layers(names: Sequence[str], layers: Sequence[str]) -> None:
    """Reject `layers` (as in `panels`) that do not exist in a decoder with attentions of these `names`.

    Raises:
      UserError: there is no such layer; the message lists those that exist.
    """
    known = ["all", "mean", *(name.rpartition(" ")[2] for name in names)]
    for name in layers:
        check(name in known or name in names, f"--layers={name}: no such attention layer; use {', '.join(known)}")


def draw(
    attention: LayerAttention,
    path: Path,
    formats: Sequence[str] = ("png", "svg"),
    *,
    layers: Sequence[str] = ("all",),
    tell: Tell,
) -> list[Path]:
    """Write a figure of one pair.

    Args:
      attention: the attention to draw.
      path: path of the files, without a suffix.
      formats: formats such as png, svg and pdf, one file for each.
      layers: as in `panels`.
      tell: receives a message if no installed font contains some of the characters.

    Returns:
      The paths of the files.
    """
    from matplotlib import font_manager, rc_context  # takes a second to import

    shown = panels(attention, layers)
    have = set(font_manager.get_font_names())
    fonts = [name for name in FONTS if name in have]
    written = []
    settings: Any = {"font.family": fonts, "font.size": POINTS, "text.parse_math": False, "svg.hashsalt": "convs2s"}
    with rc_context(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure, size = figure_of(shown, attention)
        for kind in formats:
            file = path.with_name(f"{path.name}.{kind}")
            with replacing(file) as part:
                figure.savefig(part, format=kind, dpi=min(DPI, MOST_PIXELS / max(size)), metadata=_undated(kind))
            written.append(file)
    if any("missing from" in str(warning.message) for warning in caught):
        tell(
            f"{path.name}: some characters are in no installed font and are drawn as boxes; install a font that "
            "contains them, such as Noto Sans CJK"
        )
    return written


def columns(count: int, width: float, height: float) -> int:
    """Return the number of panels per row, so that `count` panels make a figure of about 3:2 with few gaps."""

    def distance(n: int) -> float:
        rows = math.ceil(count / n)
        return abs(math.log(n * width / (rows * height) / 1.5)) + (n * rows - count) / count

    return min(range(1, count + 1), key=distance)


def label(token: str) -> str:
    """Format a token as a label: a middle dot for a space, unprintable characters escaped, long tokens truncated."""
    text = "".join("\u00b7" if c == "\u2581" or c.isspace() else c if c.isprintable() else repr(c)[1:-1] for c in token)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\u2026"


def figure_of(shown: Sequence[Panel], attention: LayerAttention) -> tuple[Any, tuple[float, float]]:
    """Return the figure, and its width and height in inches."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    across, down = ([label(token) for token in side] for side in (attention.source_tokens, attention.target_tokens))
    upright = max(map(_letters, across)) <= 2  # single characters, as of Chinese, need not be turned
    left, top = LABEL * max(map(_letters, down)) + 0.1, 0.25 if upright else LABEL * max(map(_letters, across)) + 0.1
    width, height = CELL * len(across), CELL * len(down)
    n = columns(len(shown), width + GAP, height + top + GAP)
    rows = math.ceil(len(shown) / n)
    size = left + n * (max(width, 0.6) + GAP) + 0.6, rows * (top + height + GAP) + 0.15
    figure = Figure(figsize=size)
    most = max(float(panel.weights.max()) for panel in shown)
    colours: Any = ScalarMappable(Normalize(0.0, most), "Blues")
    for i, panel in enumerate(shown):
        row, column = divmod(i, n)
        x, y = left + column * (max(width, 0.6) + GAP), size[1] - 0.05 - (row + 1) * (top + height) - row * GAP
        axes = figure.add_axes((x / size[0], y / size[1], width / size[0], height / size[1]))
        axes.imshow(panel.weights, cmap="Blues", norm=colours.norm, aspect="auto", interpolation="nearest")
        _label(axes, panel.name, across, down if column == 0 else [], upright)
    bar_x, bar_height = size[0] - 0.5, min(1.2, height)
    bar = figure.add_axes(
        (bar_x / size[0], (size[1] - 0.05 - top - bar_height) / size[1], 0.1 / size[0], bar_height / size[1])
    )
    figure.colorbar(colours, cax=bar, ticks=[0.0, most], format="%.2f").outline.set_visible(False)
    bar.tick_params(length=0, labelsize=POINTS - 2)
    return figure, size


def _label(axes: Any, name: str, across: Sequence[str], down: Sequence[str], upright: bool) -> None:
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(across)), across, rotation=0 if upright else 90)
    axes.set_yticks(range(len(down)), down)
    axes.tick_params(length=0, pad=2)
    axes.set_xlabel(name)
    for spine in axes.spines.values():
        spine.set(color="0.7", linewidth=0.5)


def _letters(text: str) -> int:
    """Return the width of a text in letters; wide East Asian characters count as two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _undated(kind: str) -> dict[str, None]:
    """Return metadata without the time, so that the same attention gives the same file."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
