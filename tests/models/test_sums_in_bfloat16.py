"""Sums over positions, sentences and steps of a model in bfloat16: its gradients take none of them in that dtype.

A sum in bfloat16 stops growing at 256 equal summands. The operations of the traced gradient are read here, since the
size of such an error depends on the numbers: with those of a new model it is small.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Jaxpr, Var

from convs2s_jax.core.config import build
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.loss import loss
from convs2s_jax.training.step import Batch
from tests.helpers import drills_but, operations
from tests.models.kinds import ENCODERS, together
from tests.models.laws import SOURCE, TARGET, E, config

LOSSES = {"loss": loss, "training_loss": partial(loss, first_order=True)}
"""That of validation, and that of an update, which computes the softmax layer with its gradient."""
HALF = jnp.bfloat16


def is_half(variable: Any) -> bool:
    return variable.aval.dtype == HALF


def unrounded(variable: Any, made: dict[Any, Any]) -> Any:
    """What this is a conversion of, or itself."""
    while variable in made and made[variable].primitive.name == "convert_element_type":
        variable = made[variable].invars[0]
    return variable


def accumulates(body: Jaxpr, out: Any) -> bool:
    """Whether an output of a loop's body is an input and something else, rounded or not."""
    made = {variable: each for each in body.eqns for variable in each.outvars}
    added = made.get(unrounded(out, made))
    if added is None or added.primitive.name not in ("add", "add_any"):
        return False
    return any(unrounded(v, made) in body.invars for v in added.invars if isinstance(v, Var))


def sums_in_bfloat16(jaxpr: Jaxpr) -> list[str]:
    """Sums of several numbers, scattered sums, and sums that a loop carries from step to step."""
    found = []
    for one in operations(jaxpr):
        name = one.primitive.name
        if name == "reduce_sum" and is_half(one.outvars[0]) and one.invars[0].aval.size > one.outvars[0].aval.size:
            found.append(f"{name} {one.invars[0].aval} -> {one.outvars[0].aval}")
        elif name == "scatter-add" and is_half(one.outvars[0]):
            found.append(f"{name} {one.outvars[0].aval}")
        elif name == "scan":
            body = one.params["jaxpr"].jaxpr
            for out, outer in zip(body.outvars, one.outvars, strict=True):
                carried = isinstance(out, Var) and out.aval.shape == outer.aval.shape
                if carried and is_half(out) and accumulates(body, out):
                    found.append(f"carried by a loop {out.aval}")
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


def test_additive_attention_of_many_positions_takes_no_sum_in_bfloat16():
    """All positions attend at once, some at a time."""
    decoder = {"kind": "recurrent", "units": 32, "attention": "additive", "wiring": "current", "out_dim": 24}
    cfg = build(
        ModelConfig, {"embedding_dim": E, "dtype": "bfloat16", "encoder": {**ENCODERS["gru"]}, "decoder": decoder}
    )
    assert sums_in_bfloat16(traced(loss, 40, cfg)) == []
