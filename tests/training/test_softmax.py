"""The softmax layer of the training step: loss and gradient of the public form, which is differentiated by JAX."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.tokens import PAD
from convs2s_jax.nn.affine import Affine
from convs2s_jax.training import sharding
from convs2s_jax.training.loss import cross_entropy, loss
from convs2s_jax.training.mesh import row_shards
from convs2s_jax.training.softmax import summed_cross_entropy
from tests.helpers import drills_but
from tests.meshes import assert_equal_each, batch, mesh_of
from tests.models.laws import config, near_to, parameters

O, V = 5, 11
BATCH = batch(3, 6, 4, 5)
BATCH = jax.tree.map(lambda tokens: np.minimum(tokens, 12), BATCH)


def problem(shape, dtype=jnp.float32, scale=1.0, words=V):
    """A layer, features and targets; the first target of each row does not count."""
    rng = np.random.default_rng(2)
    layer = Affine(
        w=jnp.asarray(scale * rng.normal(size=(O, words)), dtype), b=jnp.asarray(rng.normal(size=words), jnp.float32)
    )
    targets = rng.integers(PAD + 1, words, shape)
    targets[:, 0] = PAD
    return layer, jnp.asarray(rng.normal(size=(*shape, O)), dtype), jnp.asarray(targets, jnp.int32)


def plain(layer, features, targets, *, smoothing):
    scores = jnp.einsum("BTO,OV->BTV", features.astype(jnp.float32), layer.w.astype(jnp.float32)) + layer.b[None, None]
    return cross_entropy(scores, targets, smoothing)


def with_gradient(function, **options):
    """(layer, features, targets) -> the gradient of half the loss, so that the cotangent is not 1, and the sums."""

    def half(layer, features, targets):
        total, nll = function(layer, features, targets, **options)
        return 0.5 * total, (total, nll)

    return jax.jit(jax.grad(half, (0, 1), has_aux=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("shape", "shards"), drills_but([((6, 4), 1), ((6, 4), 3), ((1, 7), 1)], kept=[((6, 4), 3)]), ids=str
)
def test_sums_and_gradients_are_those_of_all_scores_at_once(shape, shards, smoothing):
    given, rows = problem(shape), 5  # several chunks, the last not full
    found = with_gradient(summed_cross_entropy, smoothing=smoothing, shards=shards, rows=rows)(*given)
    assert_equal_each(found, with_gradient(plain, smoothing=smoothing)(*given), tolerance=1e-6)
    alone = jax.jit(partial(summed_cross_entropy, smoothing=smoothing, shards=shards, rows=rows))(*given)
    assert_equal_each(alone, found[1], tolerance=1e-6)


def test_large_scores_neither_overflow_nor_vanish():
    given = problem((3, 4), scale=1e4)
    found = with_gradient(summed_cross_entropy, smoothing=0.1, rows=512)(*given)
    assert_equal_each(found, with_gradient(plain, smoothing=0.1)(*given), tolerance=1e-5)


def test_in_bfloat16_errors_are_those_of_rounding_and_sums_are_exact():
    given = problem((16, 32), jnp.bfloat16)
    (layer, dh), sums = with_gradient(summed_cross_entropy, smoothing=0.1, rows=16)(*given)
    (exact, exact_dh), exact_sums = with_gradient(plain, smoothing=0.1)(*given)
    assert (layer.w.dtype, layer.b.dtype, dh.dtype) == (jnp.bfloat16, jnp.float32, jnp.bfloat16)
    for ours, theirs in ((layer.w, exact.w), (layer.b, exact.b), (dh, exact_dh)):
        assert near_to(ours, np.float32(theirs))
        assert np.linalg.norm(np.float32(ours) - np.float32(theirs)) < 0.01 * np.linalg.norm(np.float32(theirs))
    assert_equal_each(sums, exact_sums, tolerance=1e-6)


MODELS = {
    "own kernel": config(),
    "tied": config("gru", "cho"),
    "light, no bias": config("lightconv", "lightconv"),
    "language model": config(decoder="language"),
}


@pytest.mark.parametrize("name", drills_but(MODELS, kept=["own kernel"]))
def test_the_training_loss_is_the_loss(name):
    cfg = MODELS[name]

    def differentiated(function):
        def summed(params):
            sums = function(params, cfg, BATCH, smoothing=0.1)
            return sums.loss, sums

        return jax.jit(jax.grad(summed, has_aux=True))(parameters(cfg))

    assert_equal_each(differentiated(partial(loss, first_order=True)), differentiated(loss), tolerance=2e-5, least=1e-3)


EXCHANGE = re.compile(r"= (.*) (?:all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def exchanged(program):
    """Elements of the largest array of each exchange between devices, in the loop and outside of it."""
    found, place = {"loop": [], "outside": []}, "loop"
    for line in program.splitlines():
        if line and not line.startswith(" "):
            place = "outside" if line.startswith("ENTRY") else "loop"
        for shapes in EXCHANGE.findall(line):
            sizes = [np.prod([int(n) for n in shape.split(",") if n]) for shape in re.findall(r"\[([\d,]*)\]", shapes)]
            found[place].append(max(sizes))
    return found


@pytest.mark.parametrize("sizes", [(2, 2, 2), (8, 1, 1)], ids=str)
def test_on_a_mesh_the_gradient_of_the_kernel_is_exchanged_once_after_the_last_chunk(sizes):
    """In the loop, shards of the vocabulary exchange what belongs to rows: at most their gradient, 6 rows of O."""
    mesh, given = mesh_of(sizes), problem((32, 3), words=40)
    spread = Affine(w=NamedSharding(mesh, P(None, "tensor")), b=NamedSharding(mesh, P("tensor")))
    placed = jax.device_put(given, (spread, *[sharding.batch_sharding(mesh)] * 2))
    differentiated = with_gradient(summed_cross_entropy, shards=row_shards(mesh), smoothing=0.1, rows=6)
    compiled = differentiated.lower(*placed).compile()
    assert_equal_each(compiled(*placed), with_gradient(plain, smoothing=0.1)(*given), tolerance=1e-6)
    found = exchanged(compiled.as_text())
    assert max(found["outside"]) == O * 40 // sizes[2]
    assert max(found["loop"], default=0) == (6 * O if sizes[2] > 1 else 0)


def test_the_gradient_of_the_kernel_contracts_two_axes():
    """A single axis of rows would take XLA's CPU compiler to a slow product."""
    gradient = jax.grad(lambda *arrays: summed_cross_entropy(*arrays, rows=4)[0])
    program = str(jax.make_jaxpr(gradient)(*problem((2, 6))))
    contracted = re.findall(rf"f32\[{O},{V}\] = dot_general\[\s*dimension_numbers=\(\(\[([\d, ]+)\]", program)
    assert [axes.count(",") for axes in contracted] == [1]
