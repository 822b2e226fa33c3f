"""Every configuration file is readable, and the presets have the sizes that were published."""

import dataclasses
import math
from pathlib import Path

import jax
import pytest

from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import fconv
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run.config import Config

FOLDER = Path(__file__).parents[2] / "configs"
SOURCE, TARGET = 9336, 6408
FAIRSEQ = {
    "fairseq_fconv_iwslt_de_en": 9_628_176,
    "iwslt14_de_en": 9_628_176,
    "fairseq_fconv": 85_207_056,
    "fairseq_fconv_wmt_en_ro": 86_979_088,
    "fairseq_fconv_wmt_en_de": 142_955_024,
    "fairseq_fconv_wmt_en_fr": 191_496_720,
    "fairseq_lightconv_iwslt_de_en": 38_705_664,
    "fairseq_lightconv_wmt_en_de": 61_353_984,
}
"""As fairseq counts them, light models without the biases of dynamic convolutions, which it never uses."""
PAPER = {
    "paper_wmt16_en_ro": 86_979_088,
    "paper_wmt14_en_de": 104_299_536,
    "paper_wmt14_en_fr": 174_082_576,
    "paper_gigaword": 11_995_664,
}
"""Counted by hand, as the others: (K C 2D + 4 D) a convolution, (C D + 2 D) a map, (rows E) a table."""


def preset(name):
    return build(Config, read_config(str(FOLDER / f"{name}.py"), []))


@pytest.mark.parametrize("arch", fconv.PRESETS)
def test_the_presets_of_fairseq_are_those_of_an_import(arch):
    model = dataclasses.replace(preset(f"fairseq_{arch}").model, dropout=0.1)
    assert fairseq.config_from_args({"arch": arch, "dropout": None}) == model


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_every_configuration_file_builds(name):
    cfg = preset(name)
    sides = [cfg.model.max_source, *([cfg.model.max_target] if isinstance(cfg.model, ModelConfig) else [])]
    assert cfg.data.batch.max_length <= min(sides)


@pytest.mark.parametrize(("name", "expected"), {**FAIRSEQ, **PAPER}.items())
def test_presets_have_the_parameters_of_fairseq_or_of_a_count_by_hand(name, expected):
    """As they are trained: directions, lengths, biases and embeddings. Light models have their own vocabularies."""
    cfg = preset(name)
    source, target, vocabulary = SOURCE, TARGET, cfg.data.vocabulary
    if cfg.model.decoder.kind == "light":
        source, target = vocabulary.src_size, vocabulary.src_size if vocabulary.joint else vocabulary.tgt_size

    def trained():
        sizes = {"source_vocabulary": source, "target_vocabulary": target}
        return conversion.split(encoder_decoder.init(jax.random.key(0), cfg.model, **sizes), cfg.model)

    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(trained))) == expected
