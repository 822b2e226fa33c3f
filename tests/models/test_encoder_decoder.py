"""Laws of the whole model and of its loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import convs2s, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn.embedding import position_rows
from convs2s_jax.training import loss as losses
from convs2s_jax.training.loss import Batch, cross_entropy, loss
from tests.helpers import array, drills_but, padded, same
from tests.models.laws import filled

E, SOURCE, TARGET = 6, 12, 13
CONFIGS = {
    "plain": ({"layers": [(8, 3)] * 2}, {"layers": [(8, 3)] * 2}),
    "projections": ({"layers": [(8, 3), (12, 3), (6, 1)]}, {"layers": [(8, 3), (12, 2), (6, 1)]}),
    "mixed": (
        {"layers": [(8, 1), (8, 2, 0), (12, 5, 2)], "positions": False},
        {"layers": [(8, 1), (12, 2, 0), (6, 5, 2)], "positions": False, "attention_layers": [1, 3]},
    ),
    "tied_output": ({"layers": [(8, 3)]}, {"layers": [(8, 3)] * 2, "tied_output": True, "out_dim": E}),
}
every_config = pytest.mark.parametrize("name", drills_but(["mixed", "tied_output"], kept=["mixed"]))
"""Widths, residual connections, projections, attention in some layers, no positions; a tied softmax with positions."""


def setup(name, **fields):
    """A config and parameters in which nothing is zero: biases and the rows of padding would hide mistakes."""
    encoder, decoder = CONFIGS[name]
    values = {"encoder": {"max_positions": 16, **encoder}, "decoder": {"max_positions": 16, "out_dim": 5, **decoder}}
    cfg = build(ModelConfig, {"embedding_dim": E, "dropout": 0.1, **values, **fields})
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
    return cfg, filled(jax.eval_shape(init, jax.random.key(0)))


PAIRS = [([5, 6, 7, 8, EOS], [5, 9, EOS]), ([9, 4, EOS], [10, 11, 12, 4, 6, EOS]), ([10, EOS], [7, EOS])]


def batch(pairs, source_length, target_length, left=False):
    return Batch(
        src=padded([src for src, _ in pairs], source_length, left), tgt=padded([tgt for _, tgt in pairs], target_length)
    )


@partial(jax.jit, static_argnums=1)
def teacher_forced(params, cfg, batch):
    """Logits and attention of a batch."""
    memory = encoder_decoder.encode(params, cfg, batch.src)
    cache = encoder_decoder.init_cache(params, cfg, memory, len(batch.tgt))
    logits, attention, _ = encoder_decoder.decode(params, cfg, memory, cache, encoder_decoder.decoder_inputs(batch.tgt))
    return logits, attention


@every_config
def test_padding_on_either_side_and_batch_neighbours_change_nothing(name):
    cfg, params = setup(name)
    alone = [teacher_forced(params, cfg, batch([pair], len(pair[0]), len(pair[1]))) for pair in PAIRS]
    for source_length, target_length, left in ((7, 8, True), (5, 6, False)):
        logits, attention = teacher_forced(params, cfg, batch(PAIRS, source_length, target_length, left))
        for row, (src, tgt) in enumerate(PAIRS):
            own = slice(-len(src), None) if left else slice(len(src))
            same((logits[row, : len(tgt)], attention[row, : len(tgt), own]), (alone[row][0][0], alone[row][1][0]))


@every_config
def test_padding_gets_no_gradient_and_every_parameter_gets_some(name):
    """The rows of padding stay zero in training; all else that a batch reads is trained."""
    cfg, params = setup(name)
    gradients = jax.jit(jax.grad(lambda params: loss(params, cfg, batch(PAIRS, 7, 8, left=True)).loss))(params)
    for side, embedding in (("encoder", gradients.encoder.embedding), ("decoder", gradients.decoder.embedding)):
        if not (side == "decoder" and cfg.decoder.tied_output):  # a tied table is read by the softmax too
            np.testing.assert_array_equal(embedding.table[PAD], 0.0)
        if embedding.positions is not None:
            np.testing.assert_array_equal(embedding.positions[:2], 0.0)
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.max(jnp.abs(leaf)) > 0), gradients))


def test_decoder_inputs_are_the_target_shifted_right():
    tgt = array([[5, 6, EOS, PAD], [5, 6, 7, EOS], [PAD] * 4], jnp.int32)
    expected = [[EOS, 5, 6, PAD], [EOS, 5, 6, 7], [PAD] * 4]
    np.testing.assert_array_equal(encoder_decoder.decoder_inputs(tgt), expected)


def test_bfloat16_is_close_to_float32_and_its_gradients_are_float32():
    """Eight bits of mantissa are 0.4 % an operation, partly averaged out: 2 % of the loss, 5 % of the gradient."""
    cfg, params = setup("plain")
    half, _ = setup("plain", dtype="bfloat16")

    def value_and_gradient(cfg):
        return jax.jit(jax.value_and_grad(lambda params: loss(params, cfg, batch(PAIRS, 5, 6)).loss))(params)

    (exact, exact_gradients), (near, near_gradients) = value_and_gradient(cfg), value_and_gradient(half)
    assert near.dtype == jnp.float32
    assert 0 < abs(float(near / exact) - 1) < 0.02
    assert {leaf.dtype for leaf in jax.tree.leaves(near_gradients)} == {jnp.dtype("float32")}
    a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(g)]) for g in (exact_gradients, near_gradients))
    assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(a)


def test_dropout_stands_where_section_4_2_and_fairseq_put_it(monkeypatch):
    """Embeddings, the input of every convolution, its padding zero, and the features: nowhere else, no key twice."""
    cfg, params = setup("projections", dropout=0.3)
    pairs = batch(PAIRS, 7, 8)
    shapes, rates = [], []

    @jax.jit
    def inputs_and_keys(params):
        seen = []

        def record(x, rate, key):
            shapes.append(x.shape)
            rates.append(rate)
            seen.append((x, jax.random.key_data(key)))
            return x

        monkeypatch.setattr(convs2s, "dropout", record)
        loss(params, cfg, pairs, key=jax.random.key(0))
        return seen

    seen = inputs_and_keys(params)
    sides = [(3, 7, E), (3, 7, 8), (3, 7, 8), (3, 7, 12), (3, 8, E), (3, 8, 8), (3, 8, 8), (3, 8, 12), (3, 8, 5)]
    assert shapes == sides
    assert rates == [0.3] * len(sides)
    assert len({tuple(key.tolist()) for _, key in seen}) == len(sides)
    for x, _ in seen[1:4]:
        np.testing.assert_array_equal(x[pairs.src == PAD], 0.0)


def logit_table(*shape):
    return np.random.default_rng(3).normal(size=(*shape, TARGET))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_cross_entropy_equals_a_loop(smoothing):
    logits, targets = logit_table(2, 3), np.array([[5, EOS, PAD], [7, 0, EOS]])
    total = nll = 0.0
    for at in np.ndindex(2, 3):
        if targets[at] == PAD:
            continue
        log_p = logits[at] - np.log(np.sum(np.exp(logits[at])))
        each = smoothing / (TARGET - 1)
        total += -(1 - smoothing - each) * log_p[targets[at]] - each * sum(log_p)
        nll += -log_p[targets[at]]
    ours = cross_entropy(array(logits), array(targets, jnp.int32), smoothing)
    same(ours, (total, nll))


@pytest.mark.parametrize(("rows", "length"), drills_but([(16, 2), (6, 12), (1, 8), (7, 3)], kept=[(7, 3)]))
def test_projecting_in_chunks_changes_neither_loss_nor_gradient(rows, length, monkeypatch):
    shape = (rows, length)
    cfg, params = setup("plain")
    rng = np.random.default_rng(4)
    features = array(rng.normal(size=(*shape, 5)))
    targets = array(rng.integers(0, TARGET, size=shape), jnp.int32)

    def value_and_gradient(chunks):
        monkeypatch.setattr(losses, "CHUNKS", chunks)

        def total(params, features):
            return losses._projected(params, cfg, features, targets, 0.1, 1)[0]

        return jax.jit(jax.value_and_grad(total, (0, 1)))(params, features)

    logits = encoder_decoder.logits(params, cfg, features)
    same(value_and_gradient(8)[0], cross_entropy(logits, targets, 0.1)[0])
    same(value_and_gradient(8), value_and_gradient(1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dropout": 1.0}, r"^model\.dropout is 1\.0: expected a probability below 1; use 0\.0 to 0\.9"),
        ({"dropout": -0.1}, r"^model\.dropout is -0\.1: expected a probability below 1"),
        ({"embedding_dim": 0}, r"^model\.embedding_dim is 0: use 1 or more"),
        ({"dtype": "float16"}, r"^model\.dtype is 'float16'; did you mean 'bfloat16'\?"),
        ({"encoder": {"kind": "cnov"}}, r"^model\.encoder\.kind is 'cnov'; did you mean 'conv'\?"),
        ({"droput": 0.1}, r"^model\.droput: there is no field 'droput'; did you mean 'dropout'\?"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(values, message):
    with pytest.raises(UserError, match=message):
        build(ModelConfig, values, "model")


@pytest.mark.parametrize("kind", ["conv", "light", "slicenet"])
def test_longest_sentences_are_two_short_of_the_position_tables(kind):
    sides = {side: {"kind": kind, "max_positions": rows} for side, rows in (("encoder", 20), ("decoder", 30))}
    cfg = build(ModelConfig, sides)
    assert (cfg.max_source, cfg.max_target) == (18, 28)
    assert np.max(position_rows(jnp.full((1, 18), 5), jnp.zeros(1, jnp.int32))) == 19
