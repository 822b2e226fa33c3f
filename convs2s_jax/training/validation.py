"""Validation: loss over every line, and BLEU of the real decoder on the whole set."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.data import loader, plan
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.encoder_decoder import ModelConfig, Params
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import translate
from convs2s_jax.training import distributed, sharding
from convs2s_jax.training.batches import batch_on
from convs2s_jax.training.loss import Batch, LossSums, loss
from convs2s_jax.training.mesh import row_shards
from convs2s_jax.training.prepare import Split
from convs2s_jax.training.scoring import Scores, score

SHAPES = 4
"""Batch shapes of a validation set: each is compiled once more, so there are fewer than in training."""


class Evaluation(NamedTuple):
    """Negative log-likelihood in nats per target token, without smoothing, over `tokens` target tokens."""

    loss: float
    tokens: int


def evaluator(cfg: ModelConfig, mesh: Mesh) -> Callable[[Params, Batch], LossSums]:
    """The jitted loss of one batch, without dropout and smoothing."""
    gather, shards = sharding.gatherer(mesh), row_shards(mesh)

    def sums(params: Params, batch: Batch) -> LossSums:
        return loss(gather(params), cfg, batch, shards=shards)

    return jax.jit(sums, out_shardings=sharding.replicated(mesh))


def evaluate(
    evaluate_batch: Callable[[Params, Batch], LossSums],
    params: Params,
    cfg: ModelConfig,
    mesh: Mesh,
    split: Split,
    *,
    tokens: int,
) -> Evaluation:
    """Loss over every line of a split; lines longer than the positions allow are cut there.

    Args:
      evaluate_batch: of `evaluator`.
      params: merged kernels.
      cfg: the model.
      mesh: over which batches are spread.
      split: at least one line.
      tokens: budget of a batch.
    """
    src, tgt = split.lengths()
    src, tgt = np.minimum(src, cfg.max_source), np.minimum(tgt, cfg.max_target)
    everything = plan.plan_all(src, tgt, tokens=tokens, shapes=SHAPES)

    def make(planned: plan.PlannedBatch) -> Batch:
        return batch_on(mesh, split, everything, planned)

    sums = [evaluate_batch(params, prepared.batch) for prepared in loader.load(everything, make)]
    fetched = jax.device_get(sums)
    count = sum(int(s.tokens) for s in fetched)
    return Evaluation(loss=sum(float(s.nll) for s in fetched) / count, tokens=count)


def translate_split(
    params: Params,
    cfg: ModelConfig,
    search: SearchConfig,
    mesh: Mesh,
    split: Split,
    vocabularies: Vocabularies,
    *,
    name: str,
    progress: Callable[[int], None],
) -> list[str]:
    """The best translation of every line. Each process translates its share, and all get all.

    Args:
      params: merged kernels.
      cfg, search: the model and its search.
      mesh: whose devices translate.
      split: what is translated.
      vocabularies: of both sides.
      name: of this work, different each time; see `distributed.meet`.
      progress: called with the number of lines done since the call before.
    """
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    whole = _ready(distributed.local(mesh, params), cfg)
    sources = [split.src[i] for i in distributed.mine(len(split.src))]
    chosen = None if set(devices) == set(jax.local_devices()) else devices
    found = translate(whole, cfg, search, sources, devices=chosen, progress=progress)
    lines = [vocabularies.tgt.decode(translation.best.tokens.tolist()) for translation in found]
    return distributed.collect(lines, len(split.src), name=name)


def bleu(split: Split, hypotheses: list[str], *, tokenize: str) -> Scores:
    """Scores of translations against the split's targets."""
    return score(hypotheses, split.text.tgt, bleu_tokenize=tokenize)


def merged(params: Tree) -> Params:
    """Kernels of a training state's parameters."""
    return _merge(params)


_merge = jax.jit(weight_norm.merge)
_ready = jax.jit(encoder_decoder.ready, static_argnums=1)


@jax.jit
def all_finite(params: Tree) -> Array:
    """Whether no parameter is infinite or not a number."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


def write_samples(folder: Path, step: int, split: Split, hypotheses: list[str], *, count: int = 50) -> None:
    """The first translations of a validation, as JSON lines: source, hypothesis, reference."""
    folder.mkdir(exist_ok=True)
    lines = zip(split.text.src, hypotheses, split.text.tgt, strict=True)
    records = [{"source": s, "hypothesis": h, "reference": r} for s, h, r in list(lines)[:count]]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / f"{step}.jsonl").write_text(text, encoding="utf-8")
