"""Programs that are spread over devices: each device searches its share of the sentences on its own."""

import re

import jax
import numpy as np
import pytest

from convs2s_jax.models import classifier, encoder_decoder
from convs2s_jax.models.classifier import ClassifierConfig
from convs2s_jax.search import classify, translate
from convs2s_jax.search.batching import Batching
from tests.helpers import drills_but
from tests.search.test_translate import MODEL, SEARCH, VOCABULARY

CLASSIFIER = ClassifierConfig(embedding_dim=8)
SOURCES = [np.arange(4, 4 + n) for n in (5, 1, 9, 3)]
SPREAD = {"batching": Batching(size=2), "devices": jax.devices()[:2]}


def translated():
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY}
    return encoder_decoder.init(jax.random.key(0), MODEL, **sizes), MODEL, SEARCH, SOURCES


def classified():
    return classifier.init(jax.random.key(0), CLASSIFIER, vocabulary=VOCABULARY, labels=5), CLASSIFIER, SOURCES


CALLS = {
    "generate": (translate, lambda: translate.translate(*translated(), **SPREAD)),
    "scores_of": (translate, lambda: translate.score(*translated(), SOURCES, **SPREAD)),
    "probabilities": (classify, lambda: classify.classify(*classified(), **SPREAD)),
}


@pytest.mark.parametrize("name", drills_but(CALLS, kept=["generate"]))
def test_devices_exchange_nothing(name, monkeypatch):
    """So several of these programs may be in progress at once; see `training.dispatch`."""
    module, call = CALLS[name]
    program, calls = getattr(module, name), []

    def noted(*args, **kwargs):
        calls.append((args, kwargs))
        return program(*args, **kwargs)

    monkeypatch.setattr(module, name, noted)
    call()
    args, kwargs = calls[0]
    text = program.lower(*args, **kwargs).compile().as_text()
    assert "num_partitions=2" in text
    assert not re.findall(r"\b(?:all-|collective-|reduce-scatter)[\w-]*\(", text)
