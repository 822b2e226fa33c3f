"""Laws of whole models: each encoder with each decoder; `kinds.py` lists what they run over."""

from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import AnyDecoder, AnyEncoder
from convs2s_jax.nn import weight_norm
from convs2s_jax.training import sharding
from convs2s_jax.training.loss import Batch, loss
from convs2s_jax.training.mesh import MeshConfig, make
from tests.helpers import drills_but, padded
from tests.models.kinds import DECODERS, ENCODERS, together
from tests.models.laws import SENTENCES, config, fresh, near_to, parameters

every_kind = pytest.mark.parametrize(
    ("encoder", "decoder"),
    drills_but(together(), kept=[("conv", "conv"), ("lightconv", "lightconv")]),
)
"""Two pairs; all others are drills."""


@pytest.mark.parametrize(
    ("length", "encoder", "decoder"),
    drills_but(
        [(length, *pair) for length in (1, 1000) for pair in together()],
        kept=[(1000, "conv", "conv")],
    ),
)
def test_gradients_are_finite_at_any_length(length, encoder, decoder):
    """With initial parameters and a row of padding in the batch; at usual lengths no parameter's gradient is zero."""
    cfg = config(encoder, decoder, dropout=0.1)
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, 13, size=(2, 1, length)).astype(np.int32)
    tokens[..., -1] = EOS
    src, tgt = (np.concatenate([x, np.full_like(x, PAD)]) for x in tokens)

    @jax.jit
    @jax.value_and_grad
    def gradient(params):
        return loss(params, cfg, Batch(src=jnp.asarray(src), tgt=jnp.asarray(tgt)), key=jax.random.key(1)).loss

    value, gradients = gradient(fresh(cfg))
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@every_kind
def test_every_parameter_has_a_gradient_a_place_on_a_mesh_and_is_merged_as_it_was_split(encoder, decoder):
    cfg = config(encoder, decoder)
    batch = Batch(src=padded(SENTENCES, 7), tgt=padded([[5, 6, 7, EOS], [8, EOS], [9, 10, EOS]], 5))
    params = parameters(cfg)
    gradients = jax.jit(jax.grad(lambda p: loss(p, cfg, batch).loss))(params)
    still = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)
        if not float(jnp.max(jnp.abs(leaf))) > 0
    ]
    assert still == []
    trained = jax.eval_shape(partial(conversion.split, cfg=cfg), params)
    sharding.shardings(trained, make(MeshConfig(data=2, fsdp=2, tensor=2)))
    merged = jax.eval_shape(weight_norm.merge, trained)
    assert jax.tree.structure(merged) == jax.tree.structure(jax.eval_shape(partial(fresh, cfg)))


@pytest.mark.drill
@pytest.mark.parametrize(("encoder", "decoder"), together())
def test_logits_of_bfloat16_are_float32_and_near_those_of_float32(encoder, decoder):
    cfgs = [config(None if encoder == "none" else encoder, decoder, dtype=dtype) for dtype in ("float32", "bfloat16")]
    tokens = padded(SENTENCES, 6)

    @partial(jax.jit, static_argnums=1)
    def logits(params, cfg):
        params = conversion.cast(params, cfg)
        memory = model.encode(params, cfg, tokens)
        return model.decode(params, cfg, memory, model.init_cache(params, cfg, memory, 3), tokens)[0]

    exact, near = (logits(fresh(cfgs[0]), cfg)[tokens != PAD] for cfg in cfgs)
    assert near.dtype == jnp.float32
    assert near_to(near, exact)


def test_every_kind_of_the_library_has_a_line_in_the_table():
    found = {values["kind"] for values in ENCODERS.values()}
    assert found | {"none"} == {kind.kind for kind in get_args(AnyEncoder)}  # "none" is that of LANGUAGE_MODELS
    assert {values["kind"] for values in DECODERS.values()} == {kind.kind for kind in get_args(AnyDecoder)}
