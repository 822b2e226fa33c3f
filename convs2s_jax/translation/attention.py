"""The attention of each layer for lines of text, and figures of it, as in appendix C of the paper.

A figure has a panel for each layer and one for their mean, source across and target down. Cells have about the same
size in every figure, so that the label of each token can be read.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.files import replacing
from convs2s_jax.core.tokens import EOS
from convs2s_jax.data.symbols import Vocabulary
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
    """Return the attention of each layer for each source and its target, in order.

    Args:
      trained: a translation model, as returned by `trained.restore`.
      sources: lines of text; a line that is longer than the model's positions is truncated at the end.
      targets: one translation per source; None for those that the run's search finds.

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
    if len(src) != len(tgt):
        raise ValueError(f"got {len(src)} sources and {len(tgt)} targets: pass one target per source")
    if (longest := max(map(len, tgt), default=0) + 1) > cfg.max_target:
        raise ValueError(
            f"a target has {longest} tokens including its end symbol, but the model has positions for only "
            f"{cfg.max_target}"
        )
    room = cfg.max_source - 1
    kept = [ids[:room] for ids in src]
    return [
        LayerAttention(
            source_tokens=_tokens(trained.vocabularies.src, source),
            target_tokens=_tokens(trained.vocabularies.tgt, target),
            layers=weights,
            mean=weights.mean(axis=0),
            names=cfg.decoder.attention_names,
            cut=len(ids) - len(source),
        )
        for ids, source, target, weights in zip(src, kept, tgt, _weights(trained.params, cfg, kept, tgt), strict=True)
    ]


def check_attends(cfg: ModelConfig) -> None:
    """Raise UserError for a model whose decoder does not attend to the source."""
    check(
        cfg.reads_source,
        "model.encoder.kind is 'none': a language model reads no source, so it has no attention",
    )
    check(
        cfg.attends,
        "model.decoder.attention is 'none': this decoder reads a summary of the source and has no attention",
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


def _tokens(vocabulary: Vocabulary, ids: np.ndarray) -> tuple[str, ...]:
    return tuple(vocabulary.token(int(i)) for i in (*ids, EOS))


FONTS = (
    *("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "IPAexGothic", "WenQuanYi Micro Hei"),
    *("Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Arial Unicode MS"),
)
"""Fonts for labels. Each character is drawn in the first installed font that contains it. DejaVu Sans comes with
matplotlib and covers Latin, Greek, Cyrillic, Hebrew and Arabic."""
CELL, LETTER, POINTS, GAP = 0.17, 0.08, 8, 0.5
"""Width of a cell and of a letter in inches, size of the letters in points, and distance between panels in inches."""
DPI, MOST_PIXELS = 150, 12000
"""Dots per inch, and the maximum number of pixels along an edge of a PNG; larger figures get fewer dots per inch."""
LONGEST = 24
"""Maximum number of letters of a label; longer tokens are truncated."""


def panels(attention: LayerAttention, layers: Sequence[str] = ("all",)) -> dict[str, np.ndarray]:
    """Return the panels of a figure, weights [T, S] by their caption.

    Args:
      attention: the attention of one pair.
      layers: "all" for every layer and their mean, "mean", or names of layers, such as "layer 2", or 2 for short.

    Raises:
      UserError: there is no such layer.
    """
    check_layers(attention.names, layers)
    single = dict(zip(attention.names, attention.layers, strict=True))
    every = {**single, "mean": attention.mean} if len(single) > 1 else single
    short = {name.rpartition(" ")[2]: name for name in single}
    found: dict[str, np.ndarray] = {}
    for name in layers:
        caption = short.get(name, name)
        found |= every if name == "all" else {caption: single.get(caption, attention.mean)}
    return found


def check_layers(names: Sequence[str], layers: Sequence[str]) -> None:
    """Raise UserError for `layers` (as in `panels`) that do not exist in a decoder with attentions of these `names`."""
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
    """Write a figure of one pair. Return the paths of the files.

    Args:
      attention: the attention to draw.
      path: path of the files, without a suffix.
      formats: formats such as png, svg and pdf, one file for each.
      layers: as in `panels`.
      tell: receives a message if no installed font contains some of the characters.
    """
    from matplotlib import font_manager, rc_context  # takes a second to import

    have = set(font_manager.get_font_names())
    fonts = [name for name in FONTS if name in have]
    written = []
    settings: Any = {"font.family": fonts, "font.size": POINTS, "text.parse_math": False, "svg.hashsalt": "convs2s"}
    with rc_context(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = figure_of(panels(attention, layers), attention)
        for kind in formats:
            file = path.with_name(f"{path.name}.{kind}")
            undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)  # the same file each time
            with replacing(file) as part:
                dpi = min(DPI, MOST_PIXELS / max(figure.get_size_inches()))
                figure.savefig(part, format=kind, dpi=dpi, metadata=undated)
            written.append(file)
    if any("missing from" in str(warning.message) for warning in caught):
        tell(
            f"{path.name}: some characters are in no installed font and are drawn as boxes; install a font that "
            "contains them, such as Noto Sans CJK"
        )
    return written


def label(token: str) -> str:
    """Format a token as a label: a middle dot for a space, unprintable characters escaped, long tokens truncated."""
    text = "".join("\u00b7" if c == "\u2581" or c.isspace() else c if c.isprintable() else repr(c)[1:-1] for c in token)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\u2026"


def figure_of(shown: Mapping[str, np.ndarray], attention: LayerAttention) -> Any:
    """Return the figure of these panels."""
    from matplotlib.figure import Figure

    across, down = ([label(token) for token in side] for side in (attention.source_tokens, attention.target_tokens))
    width = CELL * len(across) + LETTER * max(map(len, down)) + GAP
    height = CELL * len(down) + LETTER * max(map(len, across)) + GAP
    columns = math.ceil(math.sqrt(len(shown) * height / width))  # about as wide as high
    rows = math.ceil(len(shown) / columns)
    figure: Any = Figure(figsize=(columns * width + 1, rows * height), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    most = max(float(weights.max()) for weights in shown.values())
    for axes, (name, weights) in zip(places, shown.items(), strict=False):
        image = axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=most, interpolation="nearest")
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(across)), across, rotation=90)
        axes.set_yticks(range(len(down)), down)
        axes.tick_params(length=0)
        axes.set_xlabel(name)
    for axes in places[len(shown) :]:
        axes.remove()
    figure.colorbar(image, ax=places[: len(shown)], shrink=0.5, format="%.2f")
    return figure
