"""Attention weights of a few sentences, layer by layer, and receptive fields."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.receptive_field import receptive_fields
from convs2s_jax.reporting import charts
from convs2s_jax.reporting.runs import Run
from convs2s_jax.reporting.translations import Translations, chosen
from convs2s_jax.translation.layer_attention import LayerAttention, layer_attention
from convs2s_jax.translation.lines import encode
from convs2s_jax.translation.trained import Trained

MEAN = "mean"
LONGEST = 40
"""Maximum number of tokens in a sentence or translation for a readable matrix."""


def of_run(run: Run, model: Trained, found: Translations, count: int, absent: list[str]) -> list[dict[str, Any]]:
    """Attention for a few lines, ordered from short to long. If there is none, a sentence is added to `absent`."""
    if not model.cfg.translator.attends:
        absent.append(f"{run.name} is omitted: its decoder has no attention weights.")
        return []
    lengths = [len(ids) + 1 for ids in encode(model.vocabularies.tgt, found.texts)]
    longer = [max(pair) if min(pair) > 1 else 1 for pair in zip(found.lengths, lengths, strict=True)]
    places = chosen(longer, count, longest=min(LONGEST, model.cfg.translator.max_target))
    if not places:
        absent.append(
            f"{run.name} is omitted: no sentence has at most {LONGEST} tokens in both source and translation."
        )
        return []
    seen = layer_attention(model, [found.sources[i] for i in places], [found.texts[i] for i in places])
    return [
        {"run": run.name, "line": found.numbers[i] + 1, **as_json(one)} for i, one in zip(places, seen, strict=True)
    ]


def as_json(one: LayerAttention) -> dict[str, Any]:
    """Tokens and matrices as JSON values, the mean of the layers first. Weights are rounded to three decimals."""
    layers = [(MEAN, one.mean), *zip(one.names, one.layers, strict=True)]
    return {
        "source": list(one.source_tokens),
        "target": list(one.target_tokens),
        "layers": [{"name": name, "weights": np.round(weights, 3).tolist()} for name, weights in layers],
    }


def fields(runs: Sequence[Run], absent: list[str]) -> list[dict[str, Any]]:
    """Receptive fields of encoders and decoders by layer. For unbounded ones, a sentence is added to `absent`."""
    found: dict[str, list[dict[str, Any]]] = {"encoder": [], "decoder": []}
    for run in runs:
        if not isinstance(run.cfg.model, ModelConfig):
            absent.append(f"{run.name} is omitted: it is a {run.cfg.model.kind}.")
            continue
        seen = receptive_fields(run.cfg.model)
        for side, tokens in (("encoder", seen.encoder), ("decoder", seen.decoder)):
            if tokens is None:
                absent.append(f"{run.name}: its {side} is recurrent, so its receptive field is unbounded.")
            elif tokens:
                found[side] += [{"run": run.name, "layer": i, "tokens": n} for i, n in enumerate((1, *tokens))]
    names = [run.name for run in runs]
    return [{"side": side, "rows": rows, "spec": charts.fields(rows, names)} for side, rows in found.items() if rows]
