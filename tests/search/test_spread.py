"""Programs that are spread over devices: each device searches its share of the sentences on its own."""

import re
from collections import Counter

import jax
import numpy as np
import pytest

from convs2s_jax.models import encoder_decoder
from convs2s_jax.search import translate
from convs2s_jax.search.batching import Batching, batches, default_window, grouped
from tests.search.test_translate import MODEL, SEARCH, VOCABULARY

LENGTHS = {
    "Poisson": lambda rng, n: rng.poisson(15, n) + 1,
    "lognormal": lambda rng, n: np.clip(rng.lognormal(3.1, 0.6, n), 1, 500).astype(int) + 1,
}


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize(("devices", "least"), [(1, 0.95), (8, 0.95), (256, 0.8)])
def test_most_places_of_all_devices_are_filled(kind, devices, least):
    """Sentences in places of the batches of one window, whose last group of each width does not fill all devices."""
    window = default_window(64, devices)
    plan = batches(LENGTHS[kind](np.random.default_rng(20261130), window).tolist())
    widths = Counter(bucket.shape for bucket in plan)
    places = sum(rows * devices * -(-count // devices) for (rows, _), count in widths.items())
    assert window / places >= least
    if devices <= len(jax.devices()):
        _, groups = grouped(plan, jax.devices()[:devices])
        assert sum(bucket.rows for group in groups for bucket in group) == places


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
