"""The attention of each layer for lines of text, as in appendix C of the paper."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np

from convs2s_jax.core.config import check
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
    check(
        cfg.reads_source,
        "model.encoder.kind is 'none': a language model reads no source, so it has no attention",
    )
    check(
        cfg.attends,
        "model.decoder.attention is 'none': this decoder reads a summary of the source and has no attention",
    )
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
