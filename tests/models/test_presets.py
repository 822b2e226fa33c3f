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
    "multi30k_gru": multi30k_gru(),
}
PRESETS = {**PUBLISHED, **COUNTED, **MULTI30K}


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


LIGHT = {
    "fairseq_lightconv_iwslt_de_en": 38_705_664,
    "fairseq_lightconv_wmt_en_de": 61_353_984,
    "multi30k_lightconv": 4_083_012,
    "multi30k_dynamicconv": 4_124_160,
}


@pytest.mark.parametrize(("name", "expected"), LIGHT.items())
def test_presets_of_light_models_have_the_parameters_of_fairseq_or_of_a_count_by_hand(name, expected):
    """With the vocabularies of the preset, and without the biases of dynamic convolutions, which fairseq never uses."""
    cfg = preset(name)
    vocabulary = cfg.data.vocabulary
    target = vocabulary.src_size if vocabulary.joint else vocabulary.tgt_size
    init = partial(encoder_decoder.init, cfg=cfg.model, source_vocabulary=vocabulary.src_size, target_vocabulary=target)
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(init, jax.random.key(0)))) == expected


def test_the_count_by_hand_is_that_of_fairseq_where_sizes_agree():
    assert COUNTED["paper_wmt16_en_ro"] == PUBLISHED["fairseq_fconv_wmt_en_ro"]


@pytest.mark.parametrize("name", COUNTED)
def test_presets_of_the_paper_are_trained_as_in_section_4_2(name):
    training = preset(name).training
    assert (training.optimizer.kind, training.optimizer.momentum, training.clip) == ("nesterov", 0.99, 0.1)
    schedule = training.schedule
    assert (schedule.kind, schedule.rate, schedule.shrink, schedule.minimum) == ("plateau", 0.25, 0.1, 1e-4)
    assert training.label_smoothing == 0.0
