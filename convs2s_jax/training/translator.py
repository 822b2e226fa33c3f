"""A trained model taken out of its workdir, ready to translate lines of text."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from convs2s_jax.data import vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Tree
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import Translation, translate
from convs2s_jax.training import checkpoint
from convs2s_jax.training import workdir as layout
from convs2s_jax.training.config import Config


@dataclasses.dataclass(frozen=True)
class Translator:
    """A model for decoding: its configuration, merged parameters, vocabularies, and the step they are of."""

    cfg: Config
    params: Params
    vocabularies: Vocabularies
    step: int


def load(workdir: Path, *, step: int | None = None, tell: Callable[[str], None]) -> Translator:
    """The model of a workdir.

    Args:
      workdir: of train.py.
      step: of the checkpoint; None for the one with the least validation loss.
      tell: gets a sentence for each checkpoint that is damaged and passed over.

    Raises:
      UserError: no configuration, vocabulary or whole checkpoint there, or a vocabulary of another model.
    """
    cfg = layout.read_config(workdir)
    vocabularies = vocabulary.load(layout.vocabulary(workdir))

    def fresh(key: jax.Array) -> Tree:
        params = encoder_decoder.init(
            key, cfg.model, source_vocabulary=vocabularies.src.size, target_vocabulary=vocabularies.tgt.size
        )
        return weight_norm.split(params)

    folder = layout.checkpoints(workdir)
    abstract = jax.eval_shape(fresh, jax.random.key(0))
    check = partial(layout.check_vocabularies, workdir, vocabularies)
    params, position = checkpoint.restore_params(folder, abstract, step=step, check=check, tell=tell)
    return Translator(cfg, jax.jit(weight_norm.merge)(params), vocabularies, position["step"])


def translate_lines(
    translator: Translator,
    search: SearchConfig,
    lines: Sequence[str],
    *,
    rows: int = 64,
    tokens: int = 16384,
    progress: Callable[[int], None] | None = None,
) -> list[Translation]:
    """Translate lines of text, one result for each, in their order.

    Args:
      translator: the model.
      search: its options.
      lines: text; an empty line has an empty translation.
      rows, tokens: bounds of a batch in sentences and source tokens.
      progress: called with the number of lines done since the call before.
    """
    sources = [np.asarray(ids, np.int32) for ids in translator.vocabularies.src.encode(lines)]
    return translate(
        translator.params, translator.cfg.model, search, sources, rows=rows, tokens=tokens, progress=progress
    )


def text_of(translator: Translator, translation: Translation) -> str:
    """The best candidate as text."""
    return translator.vocabularies.tgt.decode(translation.best.tokens.tolist())
