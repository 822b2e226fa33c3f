"""The translation task: an encoder-decoder is trained on sentence pairs and evaluated by its translations."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.symbols import Labels, Vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.metrics.scoring import score
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Key
from convs2s_jax.search import keys
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import translate
from convs2s_jax.training.loss import loss
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import Split


def init(key: Key, cfg: ModelConfig, *, source: int, target: int) -> Params:
    """New parameters for vocabularies of `source` and `target` entries."""
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
    search: SearchConfig,
    sources: Sequence[np.ndarray],
    rows: Sequence[int],
    target: Vocabulary,
    *,
    devices: Sequence[jax.Device] | None,
    progress: Callable[[int], None],
) -> list[str]:
    """Return the best translation of every source.

    Args:
      params: merged kernels.
      model: config of the model.
      search: how to search.
      sources: token ids.
      rows: index of each source in its split, for sampling.
      target: vocabulary of the target.
      devices: the devices to use; None for all of this process.
      progress: called after each batch; may raise an error.
    """
    key = keys.for_search(search, 0, rows)
    found = translate(params, model, search, sources, key=key, devices=devices, progress=progress)
    return [target.decode(translation.best.tokens.tolist()) for translation in found]


def scores(cfg: Config, split: Split, outputs: list[str], *, details: bool = False) -> dict[str, float]:
    """The scores that the configuration selects, with the split's targets as references; there are no `details`."""
    del details
    asked = cfg.training
    found = score(outputs, [split.text.tgt], metrics=asked.metrics, bleu_tokenize=asked.bleu_tokenize)
    return {key: s.value for key, s in found.items()}
