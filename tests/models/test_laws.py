"""Laws of whole models: each encoder with each decoder; `kinds.py` lists what they run over."""

import itertools
from functools import lru_cache, partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import AnyDecoder, AnyEncoder
from convs2s_jax.models.convolutions import ConvolutionConfig
from convs2s_jax.models.recurrent import WIRINGS
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.depthwise import TAPS
from convs2s_jax.nn.recurrent import ATTENTIONS, CELLS
from convs2s_jax.training import sharding
from convs2s_jax.training.loss import Batch, loss
from convs2s_jax.training.mesh import MeshConfig, make
from tests.helpers import drills_but, padded
from tests.models.kinds import DECODERS, ENCODERS, firsts, together
from tests.models.laws import SENTENCES, E, config, fresh, parameters

ALL_PAIRS = dict.fromkeys([*itertools.product(firsts(ENCODERS), firsts(DECODERS)), *together()])
"""Each kind of encoder with each kind of decoder, and every line of the table in one pair."""
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


PAIRS, UPDATES, RATE, LEARNT = 64, 2000, 0.01, 0.2


@pytest.mark.drill
@pytest.mark.parametrize(("encoder", "decoder"), [pair for pair in ALL_PAIRS if "none" not in pair])
def test_any_pair_learns_64_pairs_by_heart(encoder, decoder):
    """Random words on both sides: greedy decoding reproduces every target exactly."""
    execution = {"convolution": "products"}  # fast inside the loop over updates
    cfg = config(encoder, decoder, dropout=0.0, execution=execution)
    rng = np.random.default_rng(5)
    sources = [[4 + n // 144, 4 + n // 12 % 12, 4 + n % 12, EOS] for n in rng.choice(12**3, PAIRS, replace=False)]
    targets = [[*rng.integers(4, 16, size=n).tolist(), EOS] for n in rng.integers(1, 4, size=PAIRS)]
    batch = Batch(src=padded(sources, 5), tgt=padded(targets, 4))
    params = model.Params(
        encoder=begun(cfg.encoder.functions.init, cfg.encoder),
        decoder=begun(cfg.decoder.functions.init, cfg.decoder),
    )
    assert float(learnt(conversion.split(params, cfg), cfg, batch)) == 1.0


@lru_cache
def begun(init, cfg):
    """Initial parameters of one side, cached for all its pairs."""
    return init(jax.random.key(0), cfg, 16, E, 0.0)


@partial(jax.jit, static_argnums=1)
def learnt(params, cfg, batch):
    """Share of targets that greedy decoding reproduces after training until the total loss is below LEARNT nats.

    At that loss each target word is much more probable than all others.
    """
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE, b2=0.98))
    flat, tree = ravel_pytree(params)  # Adam on one vector compiles in a third of the time of Adam on a tree

    @jax.value_and_grad
    def total(params):
        return loss(weight_norm.merge(params), cfg, batch).loss

    def update(carry):
        flat, state, _, count = carry
        value, gradients = total(tree(flat))
        with jax.numpy_dtype_promotion("standard"):  # optax's update count mixes dtypes
            updates, state = optimizer.update(ravel_pytree(gradients)[0], state)
        updates = jnp.where(value > LEARNT, updates, 0.0)  # no further changes once LEARNT is reached
        return flat + updates, state, value, count + 1

    def goes_on(carry):
        _, _, value, count = carry
        return (value > LEARNT) & (count < UPDATES)

    flat, *_ = jax.lax.while_loop(goes_on, update, (flat, optimizer.init(flat), jnp.inf, 0))
    params = weight_norm.merge(tree(flat))
    memory = model.encode(params, cfg, batch.src)

    def step(carry, _):
        cache, last = carry
        logits, _, cache = model.decode(params, cfg, memory, cache, last[:, None])
        last = jnp.argmax(logits[:, 0], axis=-1).astype(last.dtype)
        return (cache, last), last

    first = model.init_cache(params, cfg, memory, PAIRS), jnp.full(PAIRS, EOS, jnp.int32)
    _, words = jax.lax.scan(step, first, None, length=batch.tgt.shape[1])
    given_back = jnp.all((batch.tgt == words.T) | (batch.tgt == PAD), axis=1)
    return jnp.mean(given_back.astype(jnp.float32))


def test_every_kind_of_the_library_has_a_line_in_the_table():
    found = {values["kind"] for values in ENCODERS.values()}
    assert found | {"none"} == {kind.kind for kind in get_args(AnyEncoder)}  # "none" is that of LANGUAGE_MODELS
    assert {values["kind"] for values in DECODERS.values()} == {kind.kind for kind in get_args(AnyDecoder)}


CONVOLUTIONS = {*TAPS, *(kind.kind for kind in get_args(ConvolutionConfig))}


@pytest.mark.parametrize(
    ("field", "table"),
    [("convolution", CONVOLUTIONS), ("cell", CELLS), ("attention", ATTENTIONS), ("wiring", WIRINGS)],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_every_kind_within_a_kind_is_in_a_line_of_the_table(field, table):
    sides = [config(encoder=e).encoder for e in ENCODERS], [config(decoder=d).decoder for d in DECODERS]
    for side in sides if field in ("convolution", "cell") else sides[1:]:
        found = (getattr(one, field) for one in side if hasattr(one, field))
        assert {one if isinstance(one, str) else one.kind for one in found} == set(table)
