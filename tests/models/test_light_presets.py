"""Presets of lightweight and dynamic convolutions have the parameters of a count by hand, which is fairseq's."""

import math
from functools import partial
from pathlib import Path

import jax
import pytest

from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build
from convs2s_jax.models import encoder_decoder
from convs2s_jax.training.run.config import Config
from tests import golden

FOLDER = Path(__file__).parents[2] / "configs"
NAMES = ["fairseq_lightconv_iwslt_de_en", "fairseq_lightconv_wmt_en_de", "multi30k_lightconv", "multi30k_dynamicconv"]
ENCODER, DECODER = (3, 7, 15, 31, 31, 31, 31), (3, 7, 15, 31, 31, 31)
CASES = {
    "lightconv_01_glu": 0,
    "lightconv_02_prenorm_learnedpos_noglu_widekernel": 0,
    "dynamicconv_01_glu": 4 * 24,
    "dynamicconv_02_widekernel": 4 * 24,
}
"""Cases, and in each how many parameters fairseq has that it never uses: biases of dynamic convolutions."""


def linear(inputs, outputs):
    return inputs * outputs + outputs


def side(widths, dim, channels, ffn, heads, *, glu, dynamic, attends, norm_before=False):
    """Layers alone: maps around each convolution, its kernel, feed-forward, attention, a norm for each part."""
    total = 2 * dim if norm_before else 0
    for width in widths:
        total += linear(dim, 2 * channels if glu else channels) + linear(channels, dim) + 2 * dim
        total += channels * heads * width if dynamic else heads * width
        total += linear(dim, ffn) + linear(ffn, dim) + 2 * dim
        total += 4 * linear(dim, dim) + 2 * dim if attends else 0
    return total


def count(vocabularies, dim, encoder, decoder):
    """Both sides with embeddings and a softmax of its own."""
    source, target = vocabularies
    return (source + 2 * target) * dim + side(*encoder[0], **encoder[1]) + side(*decoder[0], **decoder[1])


def iwslt():
    sizes, how = (512, 512, 1024, 4), {"glu": False, "dynamic": True}
    return count(
        (9336, 6408), 512, ((ENCODER, *sizes), how | {"attends": False}), ((DECODER, *sizes), how | {"attends": True})
    )


def wmt():
    """With one table for both sides and the softmax."""
    sizes, how = (512, 512, 2048, 8), {"glu": True, "dynamic": True}
    both = ((ENCODER, *sizes), how | {"attends": False}), ((DECODER, *sizes), how | {"attends": True})
    return count((32_000, 32_000), 512, *both) - 2 * 32_000 * 512


def multi30k(dynamic):
    sizes, how = (128, 128, 256, 4), {"glu": True, "dynamic": dynamic}
    encoder, decoder = (3, 7, 15, 31), (3, 7, 15)
    return count(
        (10_000, 7_000),
        128,
        ((encoder, *sizes), how | {"attends": False}),
        ((decoder, *sizes), how | {"attends": True}),
    )


COUNTED = dict(zip(NAMES, (iwslt(), wmt(), multi30k(False), multi30k(True)), strict=True))


def preset(name):
    return build(Config, read_config(str(FOLDER / f"{name}.py"), []))


@pytest.mark.parametrize("name", NAMES)
def test_presets_have_the_parameters_of_a_count_by_hand(name):
    cfg = preset(name)
    vocabulary = cfg.data.vocabulary
    target = vocabulary.src_size if vocabulary.joint else vocabulary.tgt_size
    init = partial(encoder_decoder.init, cfg=cfg.model, source_vocabulary=vocabulary.src_size, target_vocabulary=target)
    shapes = jax.eval_shape(init, jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == COUNTED[name]


@pytest.mark.parametrize("name", CASES)
def test_the_count_by_hand_is_that_of_fairseq(name):
    _, info = golden.load(name)
    args = info["config"]

    def layers(part):
        widths = args[f"{part}_kernel_size_list"]
        sizes = (args[f"{part}_{size}"] for size in ("embed_dim", "conv_dim", "ffn_embed_dim", "attention_heads"))
        how = {"glu": args[f"{part}_glu"], "dynamic": args[f"{part}_conv_type"] == "dynamic"}
        how |= {"norm_before": args[f"{part}_normalize_before"], "attends": part == "decoder"}
        return (widths, *sizes), how

    source, target, dim = info["src_vocab"], info["tgt_vocab"], args["encoder_embed_dim"]
    total = count((source, target), dim, layers("encoder"), layers("decoder"))
    total -= target * dim if args["share_decoder_input_output_embed"] else 0
    total -= source * dim if args["share_all_embeddings"] else 0
    positions = 2 * (args["max_source_positions"] + 2) * dim
    total += positions if args["encoder_learned_pos"] else 0
    assert total + CASES[name] == info["parameter_count"]
