"""Sums over positions, sentences and steps of a model in bfloat16: its gradients take none of them in that dtype.

A sum in bfloat16 stops growing at 256 equal summands. The operations of the traced gradient are read here, since the
size of such an error depends on the numbers: with those of a new model it is small.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.loss import loss, training_loss
from tests.helpers import drills_but
from tests.models.kinds import together
from tests.models.laws import SOURCE, TARGET, config

LOSSES = {"loss": loss, "training_loss": training_loss}
"""That of validation, and that of an update, which computes the softmax layer with its gradient."""


def operations(jaxpr: Jaxpr) -> Iterator[Any]:
    """All operations of a program, those within loops and calls too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                if isinstance(item, ClosedJaxpr | Jaxpr):
                    yield from operations(getattr(item, "jaxpr", item))


def is_half(variable: Any) -> bool:
    return variable.aval.dtype == jnp.bfloat16


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
            added = [each for each in body.eqns if each.primitive.name in ("add", "add_any")]
            sums = {each.outvars[0] for each in added if set(each.invars) & set(body.invars)}
            for inner, outer in zip(body.outvars, one.outvars, strict=True):
                if inner.aval.shape == outer.aval.shape and is_half(outer) and inner in sums:
                    found.append(f"carried by a loop {outer.aval}")
    return found


def traced(objective: Any, **fields: Any) -> Jaxpr:
    """The gradient of a small model in bfloat16."""
    cfg = config(dtype="bfloat16", dropout=0.1, **fields)
    init = partial(model.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
    tokens = jax.ShapeDtypeStruct((4, 12), jnp.int32)

    def value(params: Any, batch: Batch, key: jax.Array) -> jax.Array:
        return objective(params, cfg, batch, key=key).loss

    key = jax.random.key(0)
    return jax.make_jaxpr(jax.grad(value))(jax.eval_shape(init, key), Batch(src=tokens, tgt=tokens), key).jaxpr


@pytest.mark.parametrize("objective", list(LOSSES))
@pytest.mark.parametrize(
    ("encoder", "decoder"),
    drills_but(
        together(), kept=[("conv", "conv"), ("lightconv", "lightconv"), ("gru", "bahdanau"), ("separable", "feeding")]
    ),
)
def test_gradients_take_no_sum_in_bfloat16(encoder, decoder, objective):
    assert sums_in_bfloat16(traced(LOSSES[objective], encoder=encoder, decoder=decoder)) == []
