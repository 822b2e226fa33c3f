"""Programs that are spread over devices: each device searches its share of the sentences on its own."""

import re

import jax
import numpy as np

from convs2s_jax.models import encoder_decoder
from convs2s_jax.search import translate
from convs2s_jax.search.batching import Batching
from tests.search.test_translate import MODEL, SEARCH, VOCABULARY

SOURCES = [np.arange(4, 4 + n) for n in (5, 1, 9, 3)]


def test_devices_exchange_nothing(monkeypatch):
    """So several of these programs may be in progress at once; see `training.dispatch`."""
    program, calls = translate.generate, []

    def noted(*args, **kwargs):
        calls.append((args, kwargs))
        return program(*args, **kwargs)

    monkeypatch.setattr(translate, "generate", noted)
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY}
    params = encoder_decoder.init(jax.random.key(0), MODEL, **sizes)
    translate.translate(params, MODEL, SEARCH, SOURCES, batching=Batching(size=2), devices=jax.devices()[:2])
    args, kwargs = calls[0]
    text = program.lower(*args, **kwargs).compile().as_text()
    assert "num_partitions=2" in text
    assert not re.findall(r"\b(?:all-|collective-|reduce-scatter)[\w-]*\(", text)
