"""Every number of fairseq's golden model cases: outputs, attention, losses and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.interop import fairseq
from convs2s_jax.models import encoder_decoder
from convs2s_jax.nn import weight_norm
from convs2s_jax.training.loss import Batch, loss
from tests import golden
from tests.helpers import difference, drills_but

CASES = [
    "fconv_01_k3_basic",
    "fconv_02_k5_proj",
    "fconv_03_mixed_1x1",
    "fconv_04_share_embed_nopad",
    "fconv_05_partial_attention",
    "fconv_06_residual_skip",
    "fconv_07_even_kernels",
    "fconv_08_fresh_init",
    "fconv_09_old_version1_checkpoint",
]
KEPT = ["fconv_04_share_embed_nopad", "fconv_07_even_kernels"]


def load(name: str, dtype: str):
    arrays, info = golden.load(name)
    cfg = fairseq.config_from_args(info["config"])
    tensors = {k.removeprefix("param/"): v.astype(dtype) for k, v in arrays.items() if k.startswith("param/")}
    return cfg, fairseq.params_from_state_dict(cfg, tensors), arrays, info


@pytest.fixture(
    params=[pytest.param(("float32", "", 1e-5), marks=pytest.mark.drill), ("float64", "64", 1e-9)],
    ids=["float32", "float64"],
)
def precision(request):
    dtype, suffix, tolerance = request.param
    with jax.enable_x64(dtype == "float64"):
        yield dtype, suffix, tolerance


@pytest.mark.parametrize("name", drills_but(CASES, kept=KEPT))
def test_outputs_and_gradients_are_those_of_fairseq(name, precision):
    dtype, suffix, tolerance = precision
    cfg, params, arrays, info = load(name, dtype)
    src, previous, target = (jnp.asarray(arrays[f"in/{k}"]) for k in ("src_tokens", "prev_output_tokens", "target"))
    np.testing.assert_array_equal(encoder_decoder.decoder_inputs(target), previous)

    def summed(params, smoothing):
        return loss(weight_norm.merge(params), cfg, Batch(src=src, tgt=target), smoothing=smoothing)

    @jax.jit
    def everything(params):
        merged = weight_norm.merge(params)
        memory = encoder_decoder.encode(merged, cfg, src)
        cache = encoder_decoder.init_cache(merged, cfg, memory, len(src))
        logits, attention, _ = encoder_decoder.decode(merged, cfg, memory, cache, previous)
        gradients = jax.grad(lambda p: summed(p, 0.0).loss)(params)
        return memory, logits, attention, summed(params, 0.0), summed(params, 0.1), gradients

    memory, logits, attention, plain, smoothed, gradients = everything(params)
    real = np.asarray(target != PAD)
    assert difference(memory.keys, arrays[f"out{suffix}/encoder_x"]) < tolerance
    source = np.asarray(memory.mask)  # what stands in padding of the values is never read
    assert difference(memory.values[source], arrays[f"out{suffix}/encoder_y"][source]) < tolerance
    assert difference(logits, arrays[f"out{suffix}/logits"]) < tolerance
    assert difference(logits[real], arrays["out/incremental_logits"][real]) < 1e-5
    # fairseq divides the attention by all layers (S2), we by those that attend
    share = info["num_attention_layers"] / len(cfg.decoder.layers)
    assert difference(attention * share, arrays[f"out{suffix}/attn"]) < tolerance

    assert difference(plain.loss, arrays[f"out{suffix}/loss"]) < tolerance
    assert difference(smoothed.loss, arrays[f"out{suffix}/loss_label_smoothed_0.1"]) < tolerance
    assert difference(smoothed.nll, plain.loss) < tolerance
    assert int(plain.tokens) == info["ntokens"]

    found = fairseq.state_dict(gradients)
    expected = {k.split("/")[1]: v for k, v in arrays.items() if k.startswith(f"grad{suffix}/")}
    assert set(expected) == set(found)
    errors = {name: difference(found[name], value) for name, value in expected.items()}
    assert not {name: error for name, error in errors.items() if error >= tolerance}
