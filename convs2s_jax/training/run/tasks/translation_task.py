"""The translation task: an encoder-decoder is trained on sentence pairs and evaluated by its translations."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from jax.sharding import Mesh
from jax.stages import Lowered

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.symbols import Labels
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.metrics.scoring import score
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Key
from convs2s_jax.search import keys
from convs2s_jax.search.translate import lowerings, translate
from convs2s_jax.training.loss import loss
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import Split
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import Interrupts


def init(key: Key, cfg: ModelConfig, *, source: int, target: int) -> Params:
    """New parameters for vocabularies of these sizes."""
    return encoder_decoder.init(key, cfg, source_vocabulary=source, target_vocabulary=target)


split = conversion.split
batch_loss = partial(loss, first_order=True)


def build_vocabularies(cfg: DataConfig, text: ParallelText, seed: int) -> Vocabularies:
    """Learn the vocabularies of both sides; for a corpus of targets only, that of the target serves both."""
    return vocabulary.build(cfg.vocabulary, text, seed, one_sided=cfg.one_sided)


def check_targets(_split: Split, vocabularies: Vocabularies) -> None:
    """Raise UserError for a classifier's vocabulary; any line can be a target."""
    if isinstance(vocabularies.tgt.segmenter, Labels):
        raise UserError(
            "the target vocabulary is a classifier's list of labels: leave data.vocabulary.dir out, or use that of a "
            "translator"
        )


def predict(
    params: Params,
    model: ModelConfig,
    cfg: Config,
    mesh: Mesh,
    split: Split,
    vocabularies: Vocabularies,
    *,
    name: str,
    interrupts: Interrupts,
) -> list[str]:
    """Return the best translation of every line. Each process translates its share, and all get all translations.

    Args:
      params: merged kernels.
      model: config of the model.
      cfg: config of the run, with the search.
      mesh: the devices to use.
      split: the lines to translate.
      vocabularies: vocabularies of both sides.
      name: unique name of this call; see `distributed.barrier`.
      interrupts: checked after each batch, and with several processes after each of `distributed.local_rounds`.

    Raises:
      InterruptedWorkError: a signal arrived.
    """
    whole, devices = distributed.local(mesh, params), distributed.own_devices(mesh)
    lines: list[str] = []
    for sources, key in _rounds(cfg, split):
        found = translate(
            whole,
            model,
            cfg.search,
            sources,
            key=key,
            devices=devices,
            progress=interrupts.check,
        )
        lines += [vocabularies.tgt.decode(translation.best.tokens.tolist()) for translation in found]
        interrupts.check_together()
    return distributed.collect(lines, len(split.src), name=name)


def programs(
    params: Params, model: ModelConfig, cfg: Config, mesh: Mesh, split: Split
) -> dict[tuple[int, ...], Callable[[], Lowered]]:
    """Return functions that trace the programs of `predict`; see `search.translate.lowerings`."""
    whole, devices = distributed.local_shapes(mesh, params), distributed.own_devices(mesh)
    found: dict[tuple[int, ...], Callable[[], Lowered]] = {}
    for sources, key in _rounds(cfg, split):
        found |= lowerings(whole, model, cfg.search, sources, key=key, devices=devices)
    return found


def _rounds(cfg: Config, split: Split) -> Iterator[tuple[list[np.ndarray], np.ndarray | None]]:
    """Sources and keys of the calls of `translate` in which this process translates its share of a split."""
    for part in distributed.local_rounds(len(split.src)):
        yield [split.src[i] for i in part], keys.for_search(cfg.search, 0, part)


def scores(cfg: Config, split: Split, outputs: list[str], *, details: bool = False) -> dict[str, float]:
    """The scores that the configuration selects, with the split's targets as references; there are no `details`."""
    del details
    asked = cfg.training
    found = score(outputs, [split.text.tgt], metrics=asked.metrics, bleu_tokenize=asked.bleu_tokenize)
    return {key: s.value for key, s in found.items()}
