"""The classification task: a classifier is trained on labelled texts and evaluated by the labels it predicts.

A label is a target of one token: `Batch.tgt` is [B, 2], the label's id and the end symbol, PAD in rows of padding. Ids
of labels begin after the special symbols; the softmax layer covers the labels only.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.text import visible
from convs2s_jax.core.tokens import PAD, SPECIAL, UNK
from convs2s_jax.data import vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.symbols import Labels, Vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.metrics.labels import accuracy, f1, macro_f1
from convs2s_jax.models import classifier
from convs2s_jax.models.classifier import ClassifierConfig, ClassifierParams
from convs2s_jax.nn.types import Key
from convs2s_jax.search.classify import classify
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.loss import cross_entropy
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import Split
from convs2s_jax.training.step import LossSums


def init(key: Key, cfg: ClassifierConfig, *, source: int, target: int) -> ClassifierParams:
    """New parameters for vocabularies of these sizes, special symbols included."""
    return classifier.init(key, cfg, vocabulary=source, labels=target - len(SPECIAL))


split = classifier.split


def batch_loss(
    params: ClassifierParams,
    cfg: ClassifierConfig,
    batch: Batch,
    *,
    smoothing: float = 0.0,
    key: Key | None = None,
) -> LossSums:
    """Cross entropy of the labels, summed over texts; arguments as in `training.loss.loss`. `tokens` counts texts."""
    labels = batch.tgt[:, 0]
    real = labels != PAD
    ids = jnp.where(real, labels - len(SPECIAL), 0)
    total, nll = cross_entropy(classifier.logits(params, cfg, batch.src, key=key), ids, smoothing, real=real)
    return LossSums(loss=total, nll=nll, tokens=jnp.sum(real))


def build_vocabularies(cfg: DataConfig, text: ParallelText, seed: int) -> Vocabularies:
    """Learn the vocabulary of the texts, and list the labels."""
    return vocabulary.build_labelled(cfg.vocabulary, text, seed)


def check_targets(split: Split, vocabularies: Vocabularies) -> None:
    """Raise UserError for a translator's vocabulary, or a line whose label is empty or does not occur in training."""
    if not isinstance(vocabularies.tgt.segmenter, Labels):
        raise UserError(
            "the target vocabulary is not a list of labels: leave data.vocabulary.dir out, or use that of a classifier"
        )
    empty = np.flatnonzero(split.tgt.lengths == 0)
    if len(empty):
        raise UserError(f"{split.text.where(int(empty[0]))}: the label is missing; add one, or delete the line")
    unknown = np.flatnonzero(split.tgt.tokens == UNK)  # one token a line
    if len(unknown):
        i = int(unknown[0])
        remedy = "correct it, add other texts with this label" if split.text.is_held_out else "correct it"
        raise UserError(
            f"{split.text.where(i)}: the label '{split.text.tgt[i].strip()}' is not in the list of labels from the "
            f"training text, or from the run set by data.vocabulary.dir or training.finetune_from: {remedy}, or delete "
            "the line"
        )


def predict(
    params: ClassifierParams,
    model: ClassifierConfig,
    _search: SearchConfig,
    sources: Sequence[np.ndarray],
    _rows: Sequence[int],
    target: Vocabulary,
    *,
    devices: Sequence[jax.Device] | None,
    progress: Callable[[int], None],
) -> list[str]:
    """Return the most probable label of every source; arguments as in `translation_task.predict`."""
    found = classify(params, model, sources, devices=devices, progress=progress)
    return [target.token(int(np.argmax(p)) + len(SPECIAL)) for p in found]


def scores(_cfg: Config, split: Split, outputs: list[str], *, details: bool = False) -> dict[str, float]:
    """Accuracy and macro F1, in percent; with `details` F1 of each label, too."""
    right = [visible(text).strip() for text in split.text.tgt]  # as `Labels` names them
    pairs = Counter(zip(outputs, right, strict=True))
    each = {f"f1/{label}": value for label, value in f1(pairs).items()} if details else {}
    return {"accuracy": accuracy(pairs), "macro_f1": macro_f1(pairs), **each}
