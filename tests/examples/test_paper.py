"""examples/paper.py, the paper in one file, computes what the package computes."""

import dataclasses

import jax
import numpy as np
import pytest

import convs2s_jax as convs2s
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn import weight_norm
from convs2s_jax.training.loss import loss
from convs2s_jax.training.optimizer import NesterovConfig, transformation
from tests.examples.test_examples import FOLDER, example

V, E, RATE = 16, 12, 0.25
ENCODER, DECODER = [(8, 3), (12, 2), (12, 3)], [(10, 3), (12, 1), (12, 4)]
CFG = convs2s.ModelConfig(
    embedding_dim=E,
    dropout=0.0,
    encoder=convs2s.ConvEncoderConfig(layers=ENCODER),
    decoder=convs2s.ConvDecoderConfig(layers=DECODER, out_dim=E),
)


@pytest.fixture(autouse=True, scope="module")
def _as_users_have_it_but_in_float64():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def paper():
    return example("paper")


def in_dicts(params):
    """The package's parameters as those of the paper's file; kernels may be split or merged."""

    def kernel(p):
        w = {"v": p.w.v, "g": p.w.g} if isinstance(p.w, weight_norm.Normed) else {"w": p.w}
        return {**w, "b": p.b}

    def layer(block):
        p = {"conv": kernel(block.conv)}
        if block.projection is not None:
            p["projection"] = kernel(block.projection)
        if block.attention is not None:
            p["attention"] = {"query": kernel(block.attention.query), "context": kernel(block.attention.context)}
        return p

    def side(p):
        maps = {"map_in": kernel(p.map_in), "map_out": kernel(p.map_out), "layers": [layer(b) for b in p.blocks]}
        return {"table": p.embedding.table, "positions": p.embedding.positions, **maps}

    decoder = side(params.decoder) | {"output": kernel(params.decoder.output)}
    return {"encoder": side(params.encoder), "decoder": decoder}


def batch(count=5):
    rng = np.random.default_rng(3)
    src, tgt = (np.full((count, width), PAD, np.int32) for width in (9, 8))
    for rows in (src, tgt):
        for row in rows:
            length = rng.integers(1, len(row))
            row[: length + 1] = [*rng.integers(3, V, length), EOS]
    return convs2s.Batch(src=src, tgt=tgt)


def close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), a, b)


@pytest.fixture(scope="module")
def params():
    plain = convs2s.init(jax.random.key(4), CFG, source_vocabulary=V, target_vocabulary=V)
    keys = iter(jax.random.split(jax.random.key(5), 100))  # biases and lengths as after training
    shaken = jax.tree.map(lambda x: x * 1.2 + 0.1 * jax.random.normal(next(keys), x.shape), plain)
    return jax.jit(convs2s.split_kernels, static_argnums=1)(shaken, CFG)


def test_it_is_short_and_needs_nothing_but_jax():
    lines = (FOLDER / "paper.py").read_text().splitlines()
    assert len(lines) <= 200
    imports = {line for line in lines if line.startswith(("import", "from"))}
    assert imports == {"import itertools", "import math", "import jax", "import jax.numpy as jnp"}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_the_package(paper, params, smoothing):
    data = batch()

    def ours(p):
        return convs2s.loss(weight_norm.merge(p), CFG, data, smoothing=smoothing).loss

    def theirs(p):
        return paper.loss(paper.merge(p), data.src, data.tgt, smoothing)[0]

    expected, gradients = jax.jit(jax.value_and_grad(ours))(params)
    found, of_paper = jax.jit(jax.value_and_grad(theirs))(in_dicts(params))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    close(of_paper, in_dicts(gradients))


def test_three_updates_are_those_of_the_package(paper, params):
    data = batch()
    optimizer = transformation(NesterovConfig(momentum=0.99))
    step = convs2s.compile_steps(
        lambda p, data, key: loss(p, CFG, data, smoothing=0.1, first_order=True, key=key), optimizer, None, clip=0.1
    )
    state, found = convs2s.init_state(params, optimizer), in_dicts(params)
    momentum = jax.tree.map(np.zeros_like, found)
    for _ in range(3):
        state, report = convs2s.update(step, state, [data], rate=RATE, key=None)
        found, momentum, nats = paper.update(found, momentum, data.src, data.tgt, RATE, 0.1)
        np.testing.assert_allclose(nats, report.loss.loss / report.loss.tokens, rtol=1e-12)
    close(found, in_dicts(state.params))


def test_the_beams_of_sentences_are_those_of_the_package(paper, params):
    merged = jax.tree.map(lambda x: np.asarray(x, np.float32), weight_norm.merge(params))  # searches score in float32
    bias = merged.decoder.output.b + 2.0 * (np.arange(V) == EOS).astype(np.float32)  # so that hypotheses end early
    output = dataclasses.replace(merged.decoder.output, b=bias)
    merged = dataclasses.replace(merged, decoder=dataclasses.replace(merged.decoder, output=output))
    src = batch(24).src
    sources = [row[(row != PAD) & (row != EOS)].tolist() for row in src]
    cfg = convs2s.SearchConfig(beam_size=3, max_length_a=0.0, max_length_b=12, min_length=0)
    with jax.enable_x64(False):
        results = convs2s.translate(merged, CFG, cfg, sources)
        beams = [paper.beam_search(in_dicts(merged), row, W=3, limit=12) for row in src]
    for found, result in zip(beams, results, strict=True):
        assert [tokens for _, tokens in found] == [c.tokens.tolist() for c in result.candidates]
        np.testing.assert_allclose([score for score, _ in found], [c.score for c in result.candidates], rtol=1e-5)
