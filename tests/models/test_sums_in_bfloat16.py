"""Sums over positions, sentences and steps of a model in bfloat16: its gradients take none of them in that dtype.

A sum in bfloat16 stops growing at 256 equal summands. The operations of the traced gradient are read here, since the
size of such an error depends on the numbers: with those of a new model it is small.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Jaxpr

from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.loss import loss
from convs2s_jax.training.step import Batch
from tests.helpers import drills_but, operations
from tests.models.kinds import together
from tests.models.laws import SOURCE, TARGET, config

LOSSES = {"loss": loss, "training_loss": partial(loss, first_order=True)}
"""That of validation, and that of an update, which computes the softmax layer with its gradient."""
HALF = jnp.bfloat16


def is_half(variable: Any) -> bool:
    return variable.aval.dtype == HALF


def sums_in_bfloat16(jaxpr: Jaxpr) -> list[str]:
    """Sums of several numbers and scattered sums; those that a loop carries: nn/test_gradient.py."""
    found = []
    for one in operations(jaxpr):
        name = one.primitive.name
        if name == "reduce_sum" and is_half(one.outvars[0]) and one.invars[0].aval.size > one.outvars[0].aval.size:
            found.append(f"{name} {one.invars[0].aval} -> {one.outvars[0].aval}")
        elif name == "scatter-add" and is_half(one.outvars[0]):
            found.append(f"{name} {one.outvars[0].aval}")
    return found


def traced(objective: Any, length: int, cfg: ModelConfig) -> Jaxpr:
    """The gradient of a model for sentences of this length."""
    init = partial(model.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
    tokens = jax.ShapeDtypeStruct((4, length), jnp.int32)

    def value(params: Any, batch: Batch, key: jax.Array) -> jax.Array:
        return objective(params, cfg, batch, key=key).loss

    key = jax.random.key(0)
    return jax.make_jaxpr(jax.grad(value))(jax.eval_shape(init, key), Batch(src=tokens, tgt=tokens), key).jaxpr


def half(encoder: str, decoder: str) -> ModelConfig:
    return config(encoder, decoder, dtype="bfloat16", dropout=0.1)


KEPT = [("conv", "conv"), ("lightconv", "lightconv"), ("gru", "bahdanau")]


@pytest.mark.parametrize("objective", list(LOSSES))
@pytest.mark.parametrize(
    ("encoder", "decoder", "length"),
    drills_but(
        [(*pair, length) for pair in together() for length in (1, 12, 300)], kept=[(*pair, 12) for pair in KEPT]
    ),
)
def test_gradients_take_no_sum_in_bfloat16(encoder, decoder, length, objective):
    assert sums_in_bfloat16(traced(LOSSES[objective], length, half(encoder, decoder))) == []
