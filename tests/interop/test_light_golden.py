"""Every number of fairseq's golden cases of lightweight and dynamic convolutions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.interop import fairseq
from convs2s_jax.models import encoder_decoder, light
from convs2s_jax.nn.trees import paths
from convs2s_jax.training.loss import Batch, loss
from tests import golden
from tests.helpers import difference, drills_but

WIDE = "dynamicconv_02_widekernel"
CASES = ["lightconv_01_glu", "lightconv_02_prenorm_learnedpos_noglu_widekernel", "dynamicconv_01_glu", WIDE]
TOKENS = ("src_tokens", "prev_output_tokens", "target")


def positions_table(rows, dim):
    """fairseq's sinusoidal table as PyTorch computes it in float32."""
    torch = pytest.importorskip("torch")
    frequencies = torch.exp(torch.arange(dim // 2, dtype=torch.float32) * -(np.log(10000) / (dim // 2 - 1)))
    angles = torch.arange(rows, dtype=torch.float32)[:, None] * frequencies[None]
    table = torch.cat([torch.sin(angles), torch.cos(angles)], dim=1).numpy()
    table[PAD] = 0.0
    return table


@pytest.fixture(
    params=[pytest.param(("float32", "", 1e-5), marks=pytest.mark.drill), ("float64", "64", 1e-9)],
    ids=["float32", "float64"],
)
def precision(request, monkeypatch):
    """In float64 with PyTorch's own sines of float32, which differ from ours in the last bit."""
    dtype, suffix, tolerance = request.param
    if dtype == "float64":
        monkeypatch.setattr(light, "sinusoidal", positions_table)
    with jax.enable_x64(dtype == "float64"):
        yield dtype, suffix, tolerance


def load(name, dtype):
    arrays, info = golden.load(name)
    cfg = fairseq.config_from_args({**info["config"], "arch": "lightconv"})
    tensors = {k.removeprefix("param/"): v.astype(dtype) for k, v in arrays.items() if k.startswith("param/")}
    return cfg, tensors, arrays, info


def run(params, cfg, arrays):
    """Encoder output, logits, attention, losses without and with smoothing, gradients."""
    src, previous, target = (jnp.asarray(arrays[f"in/{k}"]) for k in TOKENS)

    def summed(params, smoothing):
        return loss(params, cfg, Batch(src=src, tgt=target), smoothing=smoothing)

    @jax.jit
    def everything(params):
        memory = encoder_decoder.encode(params, cfg, src)
        cache = encoder_decoder.init_cache(params, cfg, memory, len(src))
        logits, attention, _ = encoder_decoder.decode(params, cfg, memory, cache, previous)
        gradients = jax.grad(lambda p: summed(p, 0.0).loss)(params)
        return memory.keys, logits, attention, summed(params, 0.0), summed(params, 0.1), gradients

    return everything(params)


def expected_gradients(gradients, tensors, cfg):
    """Gradients by fairseq's names as a tree of ours.

    A table that both sides share has one gradient, which fairseq lists under the encoder's name.
    """
    zero = {name: np.zeros_like(value) for name, value in tensors.items()}
    if cfg.decoder.tied_output:
        del zero["decoder.output_projection.weight"]  # the table once more
    if cfg.share_embeddings:
        del zero["encoder.embed_tokens.weight"]
        gradients = dict(gradients)
        gradients["decoder.embed_tokens.weight"] = gradients.pop("encoder.embed_tokens.weight")
    return fairseq.params_from_state_dict(cfg, {**zero, **gradients})


def check_gradients(ours, expected, tolerance):
    """All of them, by relative error.

    The bias of an attention's keys is left out: it adds the same to all scores of a query, so that its gradient is
    nothing but rounding; it has to be small beside that of the keys' kernel.
    """
    names = paths(ours)
    pairs = dict(zip(names, zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True), strict=True))
    assert len(pairs) > 30
    for name in [name for name in names if name.endswith("key/b")]:
        beside = np.linalg.norm(pairs[f"{name[:-1]}w"][1])
        assert all(np.linalg.norm(gradient) < tolerance * beside for gradient in pairs.pop(name))
    errors = {name: difference(*pair) for name, pair in pairs.items()}
    assert not {name: error for name, error in errors.items() if error >= tolerance}


@pytest.mark.parametrize("name", drills_but([name for name in CASES if name != WIDE], kept=CASES[2:3]))
def test_outputs_and_gradients_are_those_of_fairseq(name, precision):
    dtype, suffix, tolerance = precision
    cfg, tensors, arrays, info = load(name, dtype)
    memory, logits, attention, plain, smoothed, gradients = run(
        fairseq.params_from_state_dict(cfg, tensors), cfg, arrays
    )
    source, real = arrays["in/src_tokens"] != PAD, arrays["in/target"] != PAD
    assert difference(memory[source], arrays[f"out{suffix}/encoder_x"][source]) < tolerance
    assert difference(logits, arrays[f"out{suffix}/logits"]) < tolerance
    assert difference(logits[real], arrays["out/incremental_logits"][real]) < 1e-5
    assert difference(attention, arrays[f"out{suffix}/attn"]) < tolerance
    assert difference(attention[real], arrays["out/incremental_attn"][real]) < 1e-5
    assert difference(plain.loss, arrays[f"out{suffix}/loss"]) < tolerance
    assert difference(smoothed.loss, arrays[f"out{suffix}/loss_label_smoothed_0.1"]) < tolerance
    assert int(plain.tokens) == info["ntokens"]
    found = {k.split("/")[1]: v for k, v in arrays.items() if k.startswith(f"grad{suffix}/")}
    check_gradients(gradients, expected_gradients(found, tensors, cfg), tolerance)


@pytest.mark.parametrize(
    ("name", "cuts"),
    drills_but(
        [(name, cuts) for name in CASES for cuts in ([1] * 9, [4, 5])],
        kept=[(WIDE, [1] * 9)],
    ),
    ids=str,
)
def test_a_target_in_parts_has_the_logits_of_generation(name, cuts):
    """Over a prepared memory."""
    cfg, tensors, arrays, _ = load(name, "float32")
    params = fairseq.params_from_state_dict(cfg, tensors)
    src, previous, target = (jnp.asarray(arrays[f"in/{k}"]) for k in TOKENS)
    memory = jax.jit(lambda p: encoder_decoder.prepare(p, cfg, encoder_decoder.encode(p, cfg, src)))(params)
    decode = jax.jit(partial(encoder_decoder.decode, cfg=cfg))
    cache, at, parts = encoder_decoder.init_cache(params, cfg, memory, len(src)), 0, []
    for cut in cuts:
        logits, _, cache = decode(params, memory=memory, cache=cache, tokens=previous[:, at : at + cut])
        parts.append(logits)
        at += cut
    real = np.asarray(target != PAD)
    assert difference(jnp.concatenate(parts, axis=1)[real], arrays["out/incremental_logits"][real]) < 1e-5
