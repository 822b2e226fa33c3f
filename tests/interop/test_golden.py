"""Every number of fairseq's golden model cases: outputs, attention, losses and all gradients."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.interop import fairseq
from convs2s_jax.models import encoder_decoder
from convs2s_jax.nn import weight_norm
from convs2s_jax.training.loss import Batch, loss

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
COPIED = Path(__file__).parents[1] / "reference"  # a few cases travel with the repository


def case_folder(name: str) -> Path:
    shared = Path(__file__).parents[3] / "shared" / "golden"
    folder = COPIED if (COPIED / f"{name}.npz").exists() else shared
    if not (folder / f"{name}.npz").exists():
        pytest.skip(f"{name} lies in ../shared/golden, which is absent here")
    return folder


def load(name: str, dtype: str):
    folder = case_folder(name)
    arrays = dict(np.load(folder / f"{name}.npz", allow_pickle=False))
    info = json.loads((folder / f"{name}.json").read_text())
    cfg = fairseq.config_from_args(info["config"])
    tensors = {k.removeprefix("param/"): v.astype(dtype) for k, v in arrays.items() if k.startswith("param/")}
    return cfg, fairseq.params_from_state_dict(cfg, tensors), arrays, info


def difference(ours, theirs) -> float:
    """Relative error by norm."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-30))


@pytest.fixture(params=[("float32", "", 1e-5), ("float64", "64", 1e-9)], ids=["float32", "float64"])
def precision(request):
    dtype, suffix, tolerance = request.param
    with jax.enable_x64(dtype == "float64"):
        yield dtype, suffix, tolerance


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_fairseq(name, precision):
    dtype, suffix, tolerance = precision
    cfg, params, arrays, info = load(name, dtype)
    src, previous, target = (jnp.asarray(arrays[f"in/{k}"]) for k in ("src_tokens", "prev_output_tokens", "target"))
    np.testing.assert_array_equal(encoder_decoder.decoder_inputs(target), previous)

    @jax.jit
    def outputs(params):
        merged = weight_norm.merge(params)
        memory = encoder_decoder.encode(merged, cfg, src)
        cache = encoder_decoder.start(merged, cfg, memory, len(src))
        return memory, *encoder_decoder.decode(merged, cfg, memory, cache, previous)[:2]

    memory, logits, attention = outputs(params)
    real = np.asarray(target != PAD)
    assert difference(memory.keys, arrays[f"out{suffix}/encoder_x"]) < tolerance
    source = np.asarray(memory.mask)  # what stands in padding of the values is never read
    assert difference(memory.values[source], arrays[f"out{suffix}/encoder_y"][source]) < tolerance
    assert difference(logits, arrays[f"out{suffix}/logits"]) < tolerance
    assert difference(logits[real], arrays["out/incremental_logits"][real]) < 1e-5
    # fairseq divides the attention by all layers (S2), we by those that attend
    share = info["num_attention_layers"] / len(cfg.decoder.layers)
    assert difference(attention * share, arrays[f"out{suffix}/attn"]) < tolerance

    def summed(params, smoothing):
        return loss(weight_norm.merge(params), cfg, Batch(src=src, tgt=target), smoothing=smoothing)

    summed = jax.jit(summed, static_argnums=1)
    assert difference(summed(params, 0.0).loss, arrays[f"out{suffix}/loss"]) < tolerance
    assert difference(summed(params, 0.1).loss, arrays[f"out{suffix}/loss_label_smoothed_0.1"]) < tolerance
    assert difference(summed(params, 0.1).nll, summed(params, 0.0).loss) < tolerance
    assert int(summed(params, 0.0).tokens) == info["ntokens"]

    gradients = fairseq.state_dict(jax.jit(jax.grad(lambda p: summed(p, 0.0).loss))(params))
    expected = {k.split("/")[1]: v for k, v in arrays.items() if k.startswith(f"grad{suffix}/")}
    assert set(expected) <= set(gradients)
    wrong = {k: difference(gradients[k], v) for k, v in expected.items() if difference(gradients[k], v) >= tolerance}
    assert not wrong
    assert len(expected) == len(gradients)
