"""The attention of each layer for lines of text, and figures of it, as in appendix C of the paper.

A figure has a panel for each layer and one for their mean, source across and target down. Cells are square and have the
same size in every figure, so that the label of each token can be read. A long sentence makes a large figure. Positions
are in inches.
"""

import dataclasses
import math
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.files import replacing
from convs2s_jax.core.tokens import EOS
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Array
from convs2s_jax.search import keys
from convs2s_jax.search.batching import Batching, batches, source_rows
from convs2s_jax.search.translate import translate
from convs2s_jax.translation.lines import encode
from convs2s_jax.translation.trained import Trained

ROWS, TOKENS = 8, 1024
"""Maximum sentences and tokens in a batch: A weights for each pair of tokens take more memory than a search."""


@dataclasses.dataclass(frozen=True, eq=False)
class LayerAttention:
    """The attention of one pair of lines, both with their end symbols (S and T tokens).

    Attributes:
      source_tokens: S tokens of the source.
      target_tokens: T tokens of the target.
      layers: [A, T, S]: row i of a layer is its attention over the source when token i was predicted. Rows sum to one.
        Several heads are averaged.
      mean: [T, S], the mean of the layers.
      names: a name for each of the A attentions, such as "layer 1".
      cut: number of source tokens truncated at the end because the model has no positions for them.
    """

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    layers: np.ndarray
    mean: np.ndarray
    names: tuple[str, ...]
    cut: int = 0


def layer_attention(
    trained: Trained, sources: Sequence[str], targets: Sequence[str] | None = None
) -> list[LayerAttention]:
    """Return the attention of each layer for each source and its target.

    Args:
      trained: a translation model, as returned by `trained.restore`.
      sources: lines of text; a line that is longer than the model's positions is truncated at the end.
      targets: one translation per source; None for those that the run's search finds.

    Returns:
      One `LayerAttention` per source, in order. It does not depend on the other lines or their order.

    Raises:
      UserError: the model is not a translation model or has no attention.
      ValueError: the numbers of lines differ, or a target is longer than the model's positions.
    """
    cfg = trained.cfg.translator
    check_attends(cfg)
    src = encode(trained.vocabularies.src, sources)
    if targets is None:
        search = trained.cfg.search
        found = translate(trained.params, cfg, search, src, key=keys.for_search(search, 0, range(len(src))))
        tgt = [translation.best.tokens for translation in found]
    else:
        tgt = encode(trained.vocabularies.tgt, targets)
    _check_fit(src, tgt, cfg.max_target)
    room = cfg.max_source - 1
    kept = [ids[:room] for ids in src]
    tokens = partial(_tokens, trained.vocabularies.src.token), partial(_tokens, trained.vocabularies.tgt.token)
    return [
        LayerAttention(
            source_tokens=tokens[0](source),
            target_tokens=tokens[1](target),
            layers=weights,
            mean=weights.mean(axis=0),
            names=cfg.decoder.attention_names,
            cut=len(ids) - len(source),
        )
        for ids, source, target, weights in zip(src, kept, tgt, _weights(trained.params, cfg, kept, tgt), strict=True)
    ]


def check_attends(cfg: ModelConfig) -> None:
    """Reject a model whose decoder does not attend to the source.

    Raises:
      UserError: there is no attention; the message says why.
    """
    if not cfg.reads_source:
        raise UserError("model.encoder.kind is 'none': a language model reads no source, so it has no attention")
    if not cfg.attends:
        raise UserError(
            "model.decoder.attention is 'none': this decoder reads a summary of the source and has no attention"
        )


def _check_fit(src: Sequence[np.ndarray], tgt: Sequence[np.ndarray], most: int) -> None:
    if len(src) != len(tgt):
        raise ValueError(f"got {len(src)} sources and {len(tgt)} targets: pass one target per source")
    longest = max(map(len, tgt), default=0) + 1
    if longest > most:
        raise ValueError(
            f"a target has {longest} tokens including its end symbol, but the model has positions for only {most}"
        )


def _weights(
    params: Params, cfg: ModelConfig, src: Sequence[np.ndarray], tgt: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the weights [A, T, S] of each pair, computed in batches of few shapes."""
    found = [np.zeros(0)] * len(src)
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(src, tgt, strict=True)]
    for batch in batches(lengths, Batching(size=ROWS, tokens=TOKENS)):
        sides = (source_rows(side, batch.padded, batch.width) for side in (src, tgt))
        made = np.asarray(_computed(params, cfg, *sides))
        for row, i in enumerate(batch.indices):
            found[i] = made[row, :, : len(tgt[i]) + 1, : len(src[i]) + 1]
    return found


@partial(jax.jit, static_argnums=1)
def _computed(params: Params, cfg: ModelConfig, src: Array, tgt: Array) -> Array:
    return encoder_decoder.layer_attention(conversion.cast(params, cfg), cfg, src, tgt)


def _tokens(name: Callable[[int], str], ids: np.ndarray) -> tuple[str, ...]:
    return tuple(name(int(i)) for i in (*ids, EOS))


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
