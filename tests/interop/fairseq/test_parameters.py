"""Names, shapes and refusals of the bridge to fairseq's parameters."""

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop import fairseq
from tests import golden

NAME = "fconv_07_even_kernels"


@pytest.fixture
def case():
    arrays, info = golden.load(NAME)
    cfg = fairseq.config_from_args(info["config"])
    return cfg, info["config"], {k.removeprefix("param/"): v for k, v in arrays.items() if k.startswith("param/")}


def test_there_and_back_is_exact(case):
    cfg, _, tensors = case
    back = fairseq.state_dict(fairseq.params_from_state_dict(cfg, tensors))
    assert set(back) == set(tensors) - {"decoder.version"}
    for name, value in back.items():
        np.testing.assert_array_equal(value, tensors[name])


def test_layer_lists_are_read_and_never_evaluated(case, tmp_path):
    _, args, _ = case
    file = tmp_path / "made"
    with pytest.raises(UserError, match="layers"):
        fairseq.config_from_args({**args, "encoder_layers": f"[(8, 3)] + [open({str(file)!r}, 'w')]"})
    assert not file.exists()


def test_sides_of_different_size_are_refused(case):
    _, args, _ = case
    with pytest.raises(UserError, match="attention needs equal sizes"):
        fairseq.config_from_args({**args, "decoder_embed_dim": 7})


def test_attention_lists_name_layers(case):
    _, args, _ = case
    layers = {"decoder_layers": "[(8, 3)] * 3"}
    some = fairseq.config_from_args({**args, **layers, "decoder_attention": "[True, False, True]"})
    assert some.decoder.attention_layers == (1, 3)
    assert fairseq.config_from_args({**args, **layers, "decoder_attention": "True"}).decoder.attention_layers is None
    with pytest.raises(UserError, match="decoder does not read the source, but there is an encoder: let a layer"):
        fairseq.config_from_args({**args, **layers, "decoder_attention": "False"})


def test_an_unknown_name_is_a_mistake_of_the_developer():
    with pytest.raises(ValueError, match="fairseq has no such parameter"):
        fairseq.fairseq_name("decoder/somewhere/w/v")
    assert fairseq.fairseq_name("decoder/blocks/2/attention/query/w/g") == "decoder.attention.2.in_projection.weight_g"
