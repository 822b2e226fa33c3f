"""Scanned and rematerialised layers: one loop for a run of equal layers, and the results of unrolled ones."""

from functools import partial

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvLayer, runs
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.dropout import row_keys
from convs2s_jax.training.loss import Batch, loss
from tests.helpers import array, close, drills_but
from tests.models.laws import filled

V, E, B, S, T = 13, 6, 3, 5, 6
UNROLLED = ExecutionConfig(scan_layers=0)
OTHERS = {
    "scanned": ExecutionConfig(scan_layers=2),
    "scanned, remat": ExecutionConfig(scan_layers=2, remat="block"),
    "scanned, xla": ExecutionConfig(scan_layers=2, convolution="xla"),
    "remat": ExecutionConfig(scan_layers=0, remat="block"),
    "dots": ExecutionConfig(scan_layers=0, remat="dots"),
    "scanned, dots": ExecutionConfig(scan_layers=2, remat="dots"),
    "products": ExecutionConfig(scan_layers=0, convolution="products"),
}
every_other = pytest.mark.parametrize("other", drills_but(OTHERS, kept=["scanned, remat"]))

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


def config(name, execution=UNROLLED, **values):
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
def test_loss_and_every_gradient_are_those_of_unrolled_layers_with_the_same_dropout(other):
    name = "two runs"
    params, batch = setup(name)
    key = row_keys(jax.random.key(5), B)
    expected = loss_and_gradients(params, batch, config(name), key)
    close(loss_and_gradients(params, batch, config(name, OTHERS[other]), key), expected)
    undropped = jax.jit(loss, static_argnums=1)(params, config(name), batch, smoothing=0.1).loss
    assert abs(float(undropped - expected[0])) > 1e-2


@pytest.mark.drill
@pytest.mark.parametrize("name", ["skips", "partial attention"])
def test_loss_and_every_gradient_of_mixed_lists_are_those_of_unrolled_layers(name):
    params, batch = setup(name)
    expected = loss_and_gradients(params, batch, config(name), None)
    close(loss_and_gradients(params, batch, config(name, OTHERS["scanned, remat"]), None), expected)


@partial(jax.jit, static_argnums=1)
def decode(params, cfg, memory, cache, tokens):
    return encoder_decoder.decode(params, cfg, memory, cache, tokens)


@pytest.mark.drill
@pytest.mark.parametrize(
    ("name", "prepared"),
    [("two runs", False), ("skips", False), ("partial attention", True)],
)
def test_memory_and_any_cut_of_the_target_are_those_of_unrolled_layers(name, prepared):
    """Encoder, logits, attention and every leaf of the cache; two hypotheses for each sentence."""
    params, batch = setup(name)
    cfg = config(name, OTHERS["scanned"])
    expected = encoder_decoder.encode(params, config(name), batch.src)
    memory = jax.jit(encoder_decoder.encode, static_argnums=1)(params, cfg, batch.src)
    close(memory, expected)
    if prepared:
        memory, expected = (encoder_decoder.prepare(params, cfg, m) for m in (memory, expected))
    tokens = encoder_decoder.decoder_inputs(jnp.repeat(batch.tgt, 2, axis=0).at[1].set(EOS))
    start = encoder_decoder.init_cache(params, cfg, memory, 2 * B)
    whole = decode(params, config(name), expected, start, tokens)
    for cuts in ([6], [1, 5]):
        parts, cache, at = [], start, 0
        for cut in cuts:
            *part, cache = decode(params, cfg, memory, cache, tokens[:, at : at + cut])
            parts.append(part)
            at += cut
        logits, attention = (jnp.concatenate(p, axis=1) for p in zip(*parts, strict=True))
        close((logits, attention, cache), whole)
        np.testing.assert_allclose(attention.sum(-1), 1.0, rtol=1e-5)


@pytest.mark.drill
def test_bfloat16_is_that_of_unrolled_layers_up_to_its_rounding():
    params, batch = setup("two runs")
    expected = loss_and_gradients(params, batch, config("two runs", dtype="bfloat16"), None)
    got = loss_and_gradients(params, batch, config("two runs", OTHERS["scanned, remat"], dtype="bfloat16"), None)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype("float32")}
    close(got[0], expected[0], 1e-2)
    close(got[1], expected[1], 0.1)


def primitives(jaxpr, inside=()):
    """(name, names of those around it) of every operation."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        yield name, inside
        for sub in jax.extend.core.jaxprs_in_params(equation.params):
            yield from primitives(sub, (*inside, name))


def counts(name, execution, of="forward"):
    """How often a loop, a checkpoint, and operations occur in the layers: the loss's own loop is not counted."""
    params, batch = setup(name)
    cfg = config(name, execution)

    def features(params):
        memory = encoder_decoder.encode(params, cfg, batch.src)
        cache = encoder_decoder.init_cache(params, cfg, memory, B)
        return jnp.sum(encoder_decoder.advance(params, cfg, memory, cache, batch.tgt)[0])

    program = jax.make_jaxpr(features if of == "forward" else jax.grad(features))(params)
    found = list(primitives(program.jaxpr))
    return {
        "scan": sum(name == "scan" for name, _ in found),
        "remat": sum(name.startswith(("remat", "checkpoint")) for name, _ in found),
        "xla": sum(name == "conv_general_dilated" for name, _ in found),
        "xla in scan": sum(name == "conv_general_dilated" and "scan" in inside for name, inside in found),
        "products": sum(name == "dot_general" for name, _ in found),
    }


def test_each_run_is_one_loop_without_xlas_convolution():
    """Runs of 2 and 2 in the encoder, whose first layer of (6, 2) has other inputs, and of 3 in the decoder."""
    unrolled, scanned = (counts("two runs", cfg) for cfg in (UNROLLED, OTHERS["scanned"]))
    assert unrolled == {"scan": 0, "remat": 0, "xla": 8, "xla in scan": 0, "products": unrolled["products"]}
    assert scanned == {"scan": 3, "remat": 0, "xla": 1, "xla in scan": 0, "products": scanned["products"]}
    assert counts("two runs", OTHERS["scanned"], "backward")["scan"] == 6
    assert counts("two runs", OTHERS["scanned"], "backward")["xla in scan"] == 0
    assert counts("two runs", OTHERS["scanned, xla"])["xla in scan"] == 3
    assert counts("two runs", OTHERS["products"])["xla"] == 0
    assert counts("two runs", OTHERS["remat"])["remat"] == 8
    assert counts("two runs", OTHERS["scanned, remat"])["remat"] == 4


def test_a_single_token_is_read_without_a_loop():
    """A search takes such steps by the hundred, and would stack the kernels in each."""
    params, batch = setup("two runs")
    cfg = config("two runs", OTHERS["scanned"])
    memory = encoder_decoder.encode(params, cfg, batch.src)
    cache = encoder_decoder.init_cache(params, cfg, memory, B)
    for count, loops in ((1, 0), (2, 1)):
        program = jax.make_jaxpr(encoder_decoder.decode, static_argnums=1)(
            params, cfg, memory, cache, batch.tgt[:, :count]
        )
        assert sum(name == "scan" for name, _ in primitives(program.jaxpr)) == loops


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
    assert residuals(OTHERS["remat"]) < 0.5 * residuals(UNROLLED)
    assert residuals(OTHERS["scanned, remat"]) < 0.7 * residuals(OTHERS["scanned"])


def cut(layers, marks=None, shortest=2):
    layers = [ConvLayer(*layer) for layer in layers]
    return [len(run) for run in runs(layers, marks or [0] * len(layers), shortest)]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([(8, 3)], [1]),
        ([(8, 3)] * 4, [4]),
        ([(8, 3)] * 9 + [(16, 3)] * 4 + [(32, 1)] * 2, [9, 1, 3, 1, 1]),  # the first of more channels has a projection
        ([(8, 3), (8, 5), (8, 5)], [1, 2]),
        ([(8, 3), (8, 3, 0), (8, 3, 0), (8, 3)], [1, 2, 1]),
        ([(8, 3)] * 3 + [(8, 3, 2)] * 2, [2, 1, 1, 1]),  # layer 4 reads the output of layer 2, layer 5 that of 3
        ([(8, 3)] * 3 + [(8, 3, 4)], [3, 1]),  # the map before the layers is no part of a run
        ([(8, 3)] * 5 + [(8, 3, 3)], [3, 2, 1]),
    ],
    ids=str,
)
def test_runs_are_equal_neighbours_whose_inner_outputs_nobody_reads(layers, expected):
    assert cut(layers) == expected


def test_runs_end_where_the_marks_change():
    assert cut([(8, 3)] * 5, [True, True, False, False, True]) == [2, 2, 1]


def test_shorter_runs_than_asked_for_are_single_layers():
    layers = [(8, 3)] * 3 + [(8, 5)] * 4
    assert cut(layers, shortest=3) == [3, 4]
    assert cut(layers, shortest=4) == [1, 1, 1, 4]
    assert cut(layers, shortest=5) == [1] * 7
    assert cut(layers, shortest=0) == [1] * 7


def test_runs_cover_every_layer_in_order():
    layers = [ConvLayer(*layer) for layer in MODELS["skips"]["encoder"]]
    found = runs(layers, [0] * len(layers), 2)
    assert [i for run in found for i in run] == list(range(len(layers)))


def test_a_configuration_of_before_has_the_defaults_and_a_wrong_value_is_refused():
    values = to_dict(config("two runs"))
    del values["execution"]
    assert build(ModelConfig, values).execution == ExecutionConfig()
    with pytest.raises(UserError, match=r"^model\.execution\.convolution is 'shifts'"):
        build(ModelConfig, {"execution": {"convolution": "shifts"}}, "model")
    with pytest.raises(
        UserError, match=r"^model\.execution\.scan_layers is 1: a loop has at least two .* 0 to disable"
    ):
        build(ModelConfig, {"execution": {"scan_layers": 1}}, "model")
    with pytest.raises(UserError, match=r"^model\.execution\.softmax_rows is 0: use 1 or more, or None"):
        build(ModelConfig, {"execution": {"softmax_rows": 0}}, "model")


@pytest.mark.drill
def test_with_dots_the_results_of_products_are_kept():
    """More than inputs alone, and less than all that gradients read."""
    assert residuals(OTHERS["remat"]) < residuals(OTHERS["dots"]) < 0.9 * residuals(UNROLLED)
    assert residuals(OTHERS["scanned, remat"]) < residuals(OTHERS["scanned, dots"]) < residuals(OTHERS["scanned"])
