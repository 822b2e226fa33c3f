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
from tests.interop import light_reference
from tests.interop.light_reference import Reference

WIDE = "dynamicconv_02_widekernel"
CASES = ["lightconv_01_glu", "lightconv_02_prenorm_learnedpos_noglu_widekernel", "dynamicconv_01_glu", WIDE]
TOKENS = ("src_tokens", "prev_output_tokens", "target")


@pytest.fixture(
    params=[pytest.param(("float32", "", 1e-5), marks=pytest.mark.drill), ("float64", "64", 1e-9)],
    ids=["float32", "float64"],
)
def precision(request, monkeypatch):
    """In float64 with PyTorch's own sines of float32, which differ from ours in the last bit."""
    dtype, suffix, tolerance = request.param
    if dtype == "float64":
        pytest.importorskip("torch")
        monkeypatch.setattr(light, "sinusoidal", lambda *size: light_reference.positions_table(*size).numpy())
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


def reference_run(tensors, cfg, arrays, *, cut):
    """The same by PyTorch in float64: encoder output, logits, attention, loss, gradients by name."""
    torch = pytest.importorskip("torch")
    shared = {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    leaves = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in tensors.items()
        if name not in shared
    }
    everything = {**leaves, **dict.fromkeys(shared, leaves["encoder.embed_tokens.weight"])}
    model = Reference(everything, cfg, cut=cut)
    src, previous, target = (torch.tensor(arrays[f"in/{k}"]).long() for k in TOKENS)
    memory = model.encode(src)
    logits, attention = model.decode(memory, src != PAD, previous)
    total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
    total.backward()
    gradients = {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}
    return *(x.detach().numpy() for x in (memory, logits, attention, total)), gradients


def test_a_reference_that_cuts_kernels_as_fairseq_in_training_has_its_numbers():
    """So the reference of the next test is right but for what it is told to do otherwise."""
    cfg, tensors, arrays, _ = load(WIDE, "float64")
    memory, logits, attention, total, gradients = reference_run(tensors, cfg, arrays, cut=True)
    assert difference(memory, arrays["out64/encoder_x"]) < 1e-9
    assert difference(logits, arrays["out64/logits"]) < 1e-9
    assert difference(attention, arrays["out64/attn"]) < 1e-9
    assert difference(total, arrays["out64/loss"]) < 1e-9
    unused = {name for name in tensors if name.endswith("conv_bias")}
    expected = {k.removeprefix("grad64/"): v for k, v in arrays.items() if k.startswith("grad64/")}
    assert set(expected) - unused == set(gradients)
    ours, theirs = (expected_gradients(g, tensors, cfg) for g in (gradients, expected))
    check_gradients(ours, theirs, 1e-9)


@pytest.mark.drill
def test_kernels_wider_than_the_target_are_those_of_fairseq_in_generation(precision):
    """Fairseq's training cuts such a kernel before its softmax (S4), its generation does not: ours never does.

    So encoder output is fairseq's, logits and attention are those of its generation, loss and gradients those of a
    reference that does not cut either.
    """
    dtype, suffix, tolerance = precision
    cfg, tensors, arrays, info = load(WIDE, dtype)
    memory, logits, attention, plain, _, gradients = run(fairseq.params_from_state_dict(cfg, tensors), cfg, arrays)
    source, real = arrays["in/src_tokens"] != PAD, arrays["in/target"] != PAD
    assert difference(memory[source], arrays[f"out{suffix}/encoder_x"][source]) < tolerance
    assert difference(logits[real], arrays["out/incremental_logits"][real]) < 1e-5
    assert difference(attention[real], arrays["out/incremental_attn"][real]) < 1e-5
    assert np.abs(np.asarray(logits) - arrays["out/logits"])[real].max() > 0.3
    _, expected_logits, expected_attention, total, expected = reference_run(tensors, cfg, arrays, cut=False)
    assert difference(logits, expected_logits) < tolerance
    assert difference(attention, expected_attention) < tolerance
    assert difference(plain.loss, total) < tolerance
    assert int(plain.tokens) == info["ntokens"]
    check_gradients(gradients, expected_gradients(expected, tensors, cfg), tolerance)


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
