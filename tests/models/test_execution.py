"""Rematerialised layers and other forms of convolutions have the results of plain ones."""

from functools import partial

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.dropout import row_keys
from convs2s_jax.training.loss import Batch, loss
from tests.helpers import array, close, drills_but
from tests.models.laws import filled

V, E, B, S, T = 13, 6, 3, 5, 6
PLAIN = ExecutionConfig()
OTHERS = {
    "remat": ExecutionConfig(remat="block"),
    "dots": ExecutionConfig(remat="dots"),
    "products": ExecutionConfig(convolution="products"),
}
every_other = pytest.mark.parametrize("other", drills_but(OTHERS, kept=["remat"]))

MODELS = {
    # two runs on each side, widths odd and even, projections between them
    "two runs": {"encoder": [(4, 3)] * 2 + [(6, 2)] * 3, "decoder": [(4, 3)] * 3},
    # residuals from far, from nowhere, over runs and out of their middle
    "skips": {
        "encoder": [(4, 3), (4, 3), (4, 3), (4, 3, 2), (4, 3, 0), (4, 3, 0)],
        "decoder": [(4, 3), (4, 3), (4, 3), (4, 1, 4), (4, 1), (4, 1)],
    },
    "partial attention": {
        "encoder": [(4, 3)] * 2,
        "decoder": [(4, 3)] * 6,
        "attention_layers": [1, 2, 3, 6],
    },
}


def config(name, execution=PLAIN, **values):
    """A model in which every place drops something."""
    decoder = {"layers": MODELS[name]["decoder"], "attention_layers": MODELS[name].get("attention_layers")}
    values = {"dropout": 0.3, "execution": to_dict(execution), **values}
    return build(
        ModelConfig,
        {
            "embedding_dim": E,
            "encoder": {"layers": MODELS[name]["encoder"], "max_positions": 16},
            "decoder": {**decoder, "out_dim": 5, "max_positions": 16},
            **values,
        },
    )


def setup(name):
    """Parameters in which nothing is zero, and sentences of different lengths."""
    rng = np.random.default_rng(0)
    init = partial(encoder_decoder.init, cfg=config(name), source_vocabulary=V, target_vocabulary=V)
    params = filled(jax.eval_shape(init, jax.random.key(0)), 0.4)
    src = rng.integers(4, V, size=(B, S))
    tgt = rng.integers(4, V, size=(B, T))
    src[1, 3:], tgt[2, 2:] = PAD, PAD
    return params, Batch(src=array(src, jnp.int32), tgt=array(tgt, jnp.int32))


@partial(jax.jit, static_argnums=2)
def loss_and_gradients(params, batch, cfg, key):
    """With respect to directions and lengths, as in training."""

    def summed(split):
        return loss(weight_norm.merge(split), cfg, batch, smoothing=0.1, key=key).loss

    return jax.value_and_grad(summed)(weight_norm.split(params))


@every_other
def test_loss_and_every_gradient_are_those_of_plain_layers_with_the_same_dropout(other):
    name = "two runs"
    params, batch = setup(name)
    key = row_keys(jax.random.key(5), B)
    expected = loss_and_gradients(params, batch, config(name), key)
    close(loss_and_gradients(params, batch, config(name, OTHERS[other]), key), expected)
    undropped = jax.jit(loss, static_argnums=1)(params, config(name), batch, smoothing=0.1).loss
    assert abs(float(undropped - expected[0])) > 1e-2


@pytest.mark.drill
@pytest.mark.parametrize("name", ["skips", "partial attention"])
def test_loss_and_every_gradient_of_mixed_lists_are_those_of_plain_layers(name):
    params, batch = setup(name)
    expected = loss_and_gradients(params, batch, config(name), None)
    close(loss_and_gradients(params, batch, config(name, OTHERS["remat"]), None), expected)


def residuals(execution):
    """Elements kept between the passes that are no parameters."""
    params, batch = setup("two runs")
    cfg = config("two runs", execution)
    key = jax.random.key(8)

    def features(params):
        return jnp.sum(encoder_decoder.encode(params, cfg, batch.src, key=key).keys)

    kept = jax.eval_shape(lambda p: jax.vjp(features, p)[1], params)
    return sum(leaf.size for leaf in jax.tree.leaves(kept))


def test_rematerialised_layers_keep_their_inputs_only():
    """Less than half of what is kept otherwise, parameters counted in both."""
    assert residuals(OTHERS["remat"]) < 0.5 * residuals(PLAIN)


def test_a_configuration_of_before_has_the_defaults_and_a_wrong_value_is_refused():
    values = to_dict(config("two runs"))
    del values["execution"]
    assert build(ModelConfig, values).execution == ExecutionConfig()
    with pytest.raises(UserError, match=r"^model\.execution\.convolution is 'shifts'"):
        build(ModelConfig, {"execution": {"convolution": "shifts"}}, "model")
    assert build(ModelConfig, {"execution": {"scan_layers": 8}}).execution == ExecutionConfig()  # of earlier versions
    with pytest.raises(UserError, match=r"^model\.execution\.softmax_rows is 0: use 1 or more, or None"):
        build(ModelConfig, {"execution": {"softmax_rows": 0}}, "model")
