"""Label probabilities of texts, with the batching and the devices of translation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.models import classifier
from convs2s_jax.models.classifier import ClassifierConfig, ClassifierParams
from convs2s_jax.nn.types import Array
from convs2s_jax.search.batching import (
    DEFAULT_BATCHING,
    Batching,
    Bucket,
    batches,
    put,
    replicator,
    source_rows,
    spread,
)


def classify(
    params: ClassifierParams,
    cfg: ClassifierConfig,
    sources: Sequence[np.ndarray],
    *,
    batching: Batching = DEFAULT_BATCHING,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[np.ndarray]:
    """Return the probabilities [L] of all labels for each text, float32 or better, in the order of the texts.

    A text longer than the model allows is truncated at the end. An empty text is classified as an end symbol alone. No
    result depends on the other texts.

    Args:
      params: parameters with merged kernels.
      cfg: the model.
      sources: token ids without the end symbol, within the vocabulary.
      batching, devices, progress: as in `translate.translate`.
    """
    sources = [source[: cfg.max_source - 1] for source in sources]
    on = replicator(params)

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        indices = [i for bucket in group for i in bucket.padded]
        src = put(source_rows(sources, indices, group[0].width), mesh)
        return probabilities(on(mesh), cfg, src)

    results = [np.zeros(0, np.float32)] * len(sources)
    plan = batches([len(source) + 1 for source in sources], batching)
    for i, found in spread(plan, run, devices, progress):
        results[i] = np.asarray(found)
    return results


@partial(jax.jit, static_argnums=1)
def probabilities(params: ClassifierParams, cfg: ClassifierConfig, src: Array) -> Array:
    """p(label | text): [B, S] -> [B, L]."""
    return jax.nn.softmax(classifier.logits(params, cfg, src), axis=-1)
