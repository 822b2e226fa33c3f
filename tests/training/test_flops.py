"""FLOPs of traced programs: against formulas by hand, for every kind of model, with loops and recomputation."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Shaped

from convs2s_jax.core.config import build
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn import convolution
from convs2s_jax.training import flops
from convs2s_jax.training.flops import Flops
from convs2s_jax.training.loss import loss
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.programs import ProgramKey, compile_run, fresh_state
from convs2s_jax.training.step import Batch
from tests.helpers import drills_but
from tests.models import kinds

B, S, T, C, K, V = 4, 6, 5, 8, 3, 32


def shaped(*dims):
    return Shaped(dims, jnp.float32)


@pytest.mark.parametrize("form", ["xla", "products"])
def test_both_forms_of_a_convolution_count_the_same_forward_and_backward(form):
    def loss(w, x):
        return convolution.DENSE_FORMS[form](w, x).sum()

    w, x = shaped(K, C, 2 * C), shaped(B, T + K - 1, C)
    forward = 2 * B * T * K * C * 2 * C
    assert flops.count(loss, w, x) == Flops(forward)
    assert flops.count(jax.grad(loss, argnums=(0, 1)), w, x).model in (2 * forward, 3 * forward)  # linear: no forward


@pytest.mark.parametrize(("stride", "dilation", "padding"), [(1, 1, 0), (2, 1, 1), (1, 2, 2), (2, 3, 4)])
def test_what_a_convolution_multiplies_with_padding_is_not_counted(stride, dilation, padding):
    x, w = shaped(B, 9, C), shaped(K, C, C)
    out = (9 + 2 * padding - dilation * (K - 1) - 1) // stride + 1
    pairs = sum(0 <= o * stride + k * dilation - padding < 9 for o in range(out) for k in range(K))
    counted = flops.count(
        lambda x, w: jax.lax.conv_general_dilated(
            x, w, (stride,), [(padding, padding)], rhs_dilation=(dilation,), dimension_numbers=("NWC", "WIO", "NWC")
        ),
        x,
        w,
    )
    assert counted == Flops(2 * B * C * C * pairs)


def test_loops_are_multiplied_out_unknown_ones_reported_and_the_longer_branch_counts():
    w, x = shaped(7, C, C), shaped(B, C)
    once = 2 * B * C * C
    assert flops.count(lambda w, x: jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0], w, x) == Flops(7 * once)
    unknown = flops.count(lambda w, x: jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x @ w[0], x), w, x)
    assert unknown == Flops(once, 0, 1)
    branches = flops.count(lambda w, x: jax.lax.cond(x.sum() > 0, lambda: x @ w[0] @ w[1], lambda: x), w, x)
    assert branches == Flops(2 * once)


def test_recomputation_is_counted_apart():
    def layer(w, x):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    w, x = shaped(C, C), shaped(B, C)
    once = 2 * B * C * C
    plain = flops.count(jax.grad(lambda w, x: layer(w, x).sum()), w, x)
    again = flops.count(jax.grad(lambda w, x: jax.checkpoint(layer)(w, x).sum()), w, x)
    assert plain == Flops(5 * once)  # 2 forward, 2 for w, 1 for what is between
    assert again.model == plain.model
    assert again.recomputed == 2 * once  # the derivative of tanh reads its result


E, T0, T1 = 32, 16, 24


def taps(width, dilation=1, channels=E):
    """Products of a depthwise convolution, of each position with all that its kernel's band spans: T (T + R) C."""

    def total(length):
        return length * (length + (width - 1) * dilation) * channels

    return (total(T1) - total(T0)) // (T1 - T0)


def step(width, dilation, inputs=E):
    return taps(width, dilation, inputs) + inputs * E


GLU_LAYER, ATTENTION, OUT = 3 * 32 * 64, 2 * 32 * E + 2 * S * E, 32 * 16 + 16 * V
LIGHT = E * 64 + 32 * E + 2 * E * E + 2 * S * E + 2 * E * 32
FETCH = step(5, 1) + step(5, 4) + 2 * S * E

MULTIPLICATIONS = {
    "conv": E * 32 + 2 * (GLU_LAYER + ATTENTION) + OUT,
    "separable": E * 32 + taps(3) + taps(3, 2) + 2 * (32 * 64 + ATTENTION) + OUT,
    "lightweight": E * 32 + taps(9) + 32 * 64 + ATTENTION + OUT,
    "dynamic": E * 32 + taps(9) + 32 * 4 * 9 + 32 * 64 + ATTENTION + OUT,
    "lightconv": 2 * LIGHT + taps(3) + taps(9) + E * V,
    "slicenet": 2 * FETCH + step(3, 1, 2 * E) + step(3, 1) + step(3, 2) + 2 * step(5, 1) + E * V,
    # cells: inputs and state to the gates; additive attention: query, scores, sum; a readout; the softmax
    "bahdanau": 3 * 32 * (E + 32 + 32) + 32 * 32 + 2 * S * 32 + (32 + E + 32) * 24 + 24 * V,
    "gnmt": 4 * 24 * (E + 32 + 24 + 24 + 32 + 24) + 24 * 24 + S * 24 + S * 32 + (24 + E + 32) * 24 + 24 * V,
    "luong": 4 * 32 * (E + 32) + 2 * S * 32 + (32 + 32) * 24 + 24 * V,
    "feeding": 3 * 32 * (E + 24 + 32 + 32 + 32) + 2 * S * 32 + (32 + 32) * 24 + 24 * V,
    "cho": 3 * 32 * (E + 32 + 32) + (32 + E + 32) * 32 + 32 * V,
}
"""By hand: multiplications for one more target token in the forward pass of the decoders of `kinds.DECODERS`."""


def model_of(encoder, decoder, **execution):
    return build(ModelConfig, {"embedding_dim": E, **kinds.pair(encoder, decoder), "execution": execution})


def total_loss(decoder, length=T0, rows=B):
    """The loss, with shapes of parameters and of a batch."""
    cfg = model_of("conv", decoder)
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=V, target_vocabulary=V)
    batch = Batch(src=Shaped((rows, S), jnp.int32), tgt=Shaped((rows, length), jnp.int32))
    return lambda p, batch: loss(p, cfg, batch).loss, jax.eval_shape(init, jax.random.key(0)), batch


def forward_flops(decoder, length, rows=B):
    return flops.count(*total_loss(decoder, length, rows))


@pytest.mark.parametrize("decoder", drills_but(MULTIPLICATIONS, kept=["conv", "lightconv", "slicenet"]))
def test_a_target_token_costs_what_the_formulas_of_its_decoder_say(decoder):
    counted = forward_flops(decoder, T1).model - forward_flops(decoder, T0).model
    assert counted == 2 * B * (T1 - T0) * MULTIPLICATIONS[decoder]
    assert forward_flops(decoder, T0, 2 * B).model == 2 * forward_flops(decoder, T0).model


def test_every_kind_of_decoder_has_a_formula():
    kind = {name: values["kind"] for name, values in kinds.DECODERS.items()}
    assert {kind[name] for name in MULTIPLICATIONS} == set(kind.values())


def test_gradients_of_an_update_cost_three_times_the_forward_pass_and_those_of_the_bias():
    model, training = model_of("conv", "conv", convolution="xla"), TrainingConfig()
    init = partial(fresh_state, model=model, training=training, source=V, target=V)
    batch = Batch(src=Shaped((B, S), jnp.int32), tgt=Shaped((B, T0), jnp.int32))
    step = compile_run(ProgramKey(model, training))
    found = flops.count(step.first, jax.eval_shape(init, jax.random.key(0)).params, batch, jax.random.key(0))
    assert found == Flops(3 * forward_flops("conv", T0).model + 2 * B * T0 * V)
