"""Every configuration file is readable, and the presets have the sizes that were published."""

import math
from functools import partial
from pathlib import Path

import jax
import pytest

from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs import fresh_state

FOLDER = Path(__file__).parents[2] / "configs"
SOURCE, TARGET, POSITIONS = 9336, 6408, 1024


def preset(name):
    return build(Config, read_config(str(FOLDER / f"{name}.py"), []))


def linear(inputs, outputs):
    """Directions, and a length and a bias an output."""
    return inputs * outputs + 2 * outputs


def conv(width, inputs, outputs):
    """A convolution that feeds a GLU: twice the outputs."""
    return width * inputs * 2 * outputs + 2 * 2 * outputs


def attention(channels, dim=512):
    return linear(channels, dim) + linear(dim, channels)


def wmt16_en_ro():
    """20 x (512, 3), E = O = 512."""
    layers = 20 * conv(3, 512, 512)
    encoder = (SOURCE + POSITIONS) * 512 + linear(512, 512) + layers + linear(512, 512)
    decoder = (TARGET + POSITIONS) * 512 + linear(512, 512) + layers + 20 * attention(512) + linear(512, 512)
    return encoder + decoder + linear(512, TARGET)


def wmt14_en_de():
    """10 x (512, 3), 3 x (768, 3), 2 x (2048, 1), E = O = 512; channels change twice, by projections."""
    layers = 10 * conv(3, 512, 512)
    layers += conv(3, 512, 768) + linear(512, 768) + 2 * conv(3, 768, 768)
    layers += conv(1, 768, 2048) + linear(768, 2048) + conv(1, 2048, 2048)
    attentions = 10 * attention(512) + 3 * attention(768) + 2 * attention(2048)
    encoder = (SOURCE + POSITIONS) * 512 + linear(512, 512) + layers + linear(2048, 512)
    decoder = (TARGET + POSITIONS) * 512 + linear(512, 512) + layers + attentions + linear(2048, 512)
    return encoder + decoder + linear(512, TARGET)


def wmt14_en_fr():
    """5 x (512, 3), 4 x (768, 3), 3 x (1024, 3), (2048, 1), (4096, 1), E = O = 512; channels change four times."""
    layers = 5 * conv(3, 512, 512)
    layers += conv(3, 512, 768) + linear(512, 768) + 3 * conv(3, 768, 768)
    layers += conv(3, 768, 1024) + linear(768, 1024) + 2 * conv(3, 1024, 1024)
    layers += conv(1, 1024, 2048) + linear(1024, 2048)
    layers += conv(1, 2048, 4096) + linear(2048, 4096)
    attentions = 5 * attention(512) + 4 * attention(768) + 3 * attention(1024) + attention(2048) + attention(4096)
    encoder = (SOURCE + POSITIONS) * 512 + linear(512, 512) + layers + linear(4096, 512)
    decoder = (TARGET + POSITIONS) * 512 + linear(512, 512) + layers + attentions + linear(4096, 512)
    return encoder + decoder + linear(512, TARGET)


def gigaword():
    """6 x (256, 3), E = O = 256."""
    layers = 6 * conv(3, 256, 256)
    encoder = (SOURCE + POSITIONS) * 256 + linear(256, 256) + layers + linear(256, 256)
    decoder = (TARGET + POSITIONS) * 256 + linear(256, 256) + layers + 6 * attention(256, 256) + linear(256, 256)
    return encoder + decoder + linear(256, TARGET)


def separable(width, inputs, outputs):
    """K weights and a length for each channel, then every channel to twice the outputs (table 11-1: K O + O N)."""
    return (width + 1) * inputs + linear(inputs, 2 * outputs)


def multi30k_convs2s(convolution=conv, width=3, dim=128):
    """4 + 3 layers, each decoder layer with an attention; E = O = 128."""
    encoder = (SOURCE + POSITIONS) * dim + linear(dim, dim) + 4 * convolution(width, dim, dim) + linear(dim, dim)
    decoder = (TARGET + POSITIONS) * dim + linear(dim, dim) + 3 * (convolution(width, dim, dim) + attention(dim, dim))
    return encoder + decoder + linear(dim, dim) + linear(dim, TARGET)


def recurrent(gates, inputs, units):
    """One cell: a kernel and a bias for what comes in, and for its state."""
    return gates * units * (inputs + units + 2)


def multi30k_gru(dim=128, units=256, out=128):
    """Both directions, map to E; first state, cell of word and context, attention, O of state, context and word."""
    encoder = SOURCE * dim + 2 * recurrent(3, dim, units) + (2 * units + 1) * dim
    additive = (units + 1) * units + dim * units + units
    decoder = TARGET * dim + (dim + 1) * units + recurrent(3, 2 * dim, units) + additive
    return encoder + decoder + (units + 2 * dim + 1) * out + (out + 1) * TARGET


def multi30k_conv_gru(dim=128, units=256, out=128):
    """A convolutional encoder with its lengths; the same decoder with a bilinear attention."""
    encoder = (SOURCE + POSITIONS) * dim + linear(dim, 128) + 4 * conv(3, 128, 128) + linear(128, dim)
    decoder = TARGET * dim + (dim + 1) * units + recurrent(3, 2 * dim, units) + dim * units
    return encoder + decoder + (units + 2 * dim + 1) * out + (out + 1) * TARGET


def gnmt(units=1024):
    """8 layers, the first of both directions; 8 layers of which all read the context."""
    encoder = SOURCE * units + 2 * recurrent(4, units, units) + recurrent(4, 2 * units, units)
    encoder += 6 * recurrent(4, units, units) + (units + 1) * units
    additive = (units + 1) * units + units * units + units
    decoder = TARGET * units + 8 * (units + 1) * 2 * units + 8 * recurrent(4, 2 * units, units) + additive
    return encoder + decoder + (3 * units + 1) * units + (units + 1) * TARGET


def scan_gru(units=100):
    """One direction, E = U."""
    encoder = SOURCE * units + recurrent(3, units, units) + (units + 1) * units
    additive = (units + 1) * units + units * units + units
    decoder = TARGET * units + (units + 1) * units + recurrent(3, 2 * units, units) + additive
    return encoder + decoder + (3 * units + 1) * units + (units + 1) * TARGET


PUBLISHED = {
    "fairseq_fconv_iwslt_de_en": 9_628_176,
    "iwslt14_de_en": 9_628_176,
    "fairseq_fconv": 85_207_056,
    "fairseq_fconv_wmt_en_ro": 86_979_088,
    "fairseq_fconv_wmt_en_de": 142_955_024,
    "fairseq_fconv_wmt_en_fr": 191_496_720,
}
COUNTED = {
    "paper_wmt16_en_ro": wmt16_en_ro(),
    "paper_wmt14_en_de": wmt14_en_de(),
    "paper_wmt14_en_fr": wmt14_en_fr(),
    "paper_gigaword": gigaword(),
}
MULTI30K = {
    "multi30k_de_en": multi30k_convs2s(),
    "multi30k_convs2s": multi30k_convs2s(),
    "multi30k_separable": multi30k_convs2s(separable, width=5),
    "multi30k_gru": multi30k_gru(),
    "multi30k_conv_gru": multi30k_conv_gru(),
}
RECURRENT = {
    "gnmt": gnmt(),
    "scan_gru": scan_gru(),
}
PRESETS = {**PUBLISHED, **COUNTED, **MULTI30K, **RECURRENT}


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_every_configuration_file_builds(name):
    cfg = preset(name)
    sides = [cfg.model.max_source, *([cfg.model.max_target] if isinstance(cfg.model, ModelConfig) else [])]
    assert cfg.data.batch.max_length <= min(sides)


@pytest.mark.parametrize(("name", "expected"), PRESETS.items())
def test_presets_have_the_parameters_of_fairseq_or_of_a_count_by_hand(name, expected):
    """All of them as they are trained: directions, lengths, biases and embeddings, positions included."""
    cfg = preset(name).model
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
    shapes = jax.eval_shape(lambda key: conversion.split(init(key), cfg), jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == expected


def test_the_count_by_hand_is_that_of_fairseq_where_sizes_agree():
    assert COUNTED["paper_wmt16_en_ro"] == PUBLISHED["fairseq_fconv_wmt_en_ro"]


@pytest.mark.parametrize("name", COUNTED)
def test_presets_of_the_paper_are_trained_as_in_section_4_2(name):
    training = preset(name).training
    assert (training.optimizer.kind, training.optimizer.momentum, training.clip) == ("nesterov", 0.99, 0.1)
    schedule = training.schedule
    assert (schedule.kind, schedule.rate, schedule.shrink, schedule.minimum) == ("plateau", 0.25, 0.1, 1e-4)
    assert training.label_smoothing == 0.0


def parameters(cfg):
    """Number of parameters with the vocabularies of the preset."""
    vocabulary = cfg.data.vocabulary
    sizes = {"source": vocabulary.src_size, "target": vocabulary.src_size if vocabulary.joint else vocabulary.tgt_size}
    state = jax.eval_shape(partial(fresh_state, model=cfg.model, training=cfg.training, **sizes), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(state.params))


SMALL_CORPORA = {"fairseq_lightconv_iwslt_de_en": 1000}
"""Presets whose epochs are minutes, with the updates of one: 160,000 pairs of IWSLT'14, about 160 in a batch."""

LONG_EPOCHS = ("kftt_ja_en", "kftt_ja_en_lightconv")
"""Presets for two processor cores whose epochs take a quarter of an hour: 330,000 pairs."""
TWO_CORES = 0.25e12
"""FLOPs a second of two cores with AVX-512 in training (docs/performance.md)."""


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_large_presets_save_every_few_minutes(name):
    """6 FLOPs for each parameter and token, at 3 TFLOP/s, which one GPU of the paper's time reaches in float32."""
    cfg = preset(name)
    count = parameters(cfg)
    if name in LONG_EPOCHS:
        assert 2 <= 6 * count * cfg.data.batch.tokens * cfg.training.save_every / TWO_CORES / 60 <= 20
        return
    if count < 20e6:  # an epoch of the corpora that these are for is minutes
        assert cfg.training.save_every is None
        return
    every = SMALL_CORPORA.get(name, cfg.training.save_every)
    assert every is not None
    minutes = 6 * count * cfg.data.batch.tokens * every / 3e12 / 60
    assert 2 <= minutes <= 20
    if name not in SMALL_CORPORA:
        said = " ".join((FOLDER / f"{name}.py").read_text().split())
        assert f"every {every:,} updates, about {round(minutes)} minutes at 3 TFLOP/s" in said
