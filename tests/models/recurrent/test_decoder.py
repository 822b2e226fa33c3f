"""The recurrent decoder against loops of PyTorch's cells, one sentence and one step at a time, and its rules."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import output
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.recurrent import decoder as recurrent_decoder
from convs2s_jax.models.recurrent import wirings as recurrent_wirings
from convs2s_jax.models.recurrent.decoder import RecurrentDecoderConfig
from tests.helpers import array, drills_but
from tests.models.laws import filled

V, E, U, O, S = 13, 4, 4, 5, 4
LENGTHS = [4, 2]
TARGETS = [[EOS, 5, 6, 7, 8], [EOS, 11, 12]]
TOKENS = array([row + [PAD] * (5 - len(row)) for row in TARGETS], jnp.int32)
CONFIGS = {
    "bahdanau": {"attention": "additive"},
    "gnmt": {"cell": "lstm", "layers": 3, "residual": 2, "attention": "additive"},
    "luong": {"cell": "lstm", "layers": 2, "attention": "general", "wiring": "current"},
    "luong, dot": {"attention": "dot", "wiring": "current", "layers": 3, "residual": 3},
    "input feeding": {"cell": "lstm", "layers": 3, "residual": 2, "attention": "general", "wiring": "feeding"},
    "additive, fed": {"attention": "additive", "wiring": "feeding"},
    "cho": {"attention": "none", "layers": 2},
    "sutskever": {"attention": "none", "cell": "lstm", "layers": 2, "wiring": "current"},
    "tied": {"tied_output": True, "out_dim": E},
}


def setup(name):
    """A config and parameters in which nothing is zero."""
    cfg = build(RecurrentDecoderConfig, {"units": U, "out_dim": O, **CONFIGS[name]})
    init = partial(recurrent_decoder.init, cfg=cfg, vocabulary=V, dim=E, rate=0.1)
    return cfg, filled(jax.eval_shape(init, jax.random.key(0)), 0.6)


def memory():
    rng = np.random.default_rng(1)
    keys, values = (array(rng.normal(size=(2, S, E))) for _ in range(2))
    summary = array(rng.normal(size=(2, E)))
    return Memory(keys=keys, values=values, mask=jnp.arange(S)[None] < jnp.asarray(LENGTHS)[:, None], summary=summary)


def decode(params, cfg, memory, tokens=TOKENS, rate=0.0, **options):
    memory = recurrent_decoder.prepare(params, cfg, memory)
    cache = recurrent_decoder.init_cache(params, cfg, memory, len(tokens))
    features, layers, _ = recurrent_decoder.advance(params, cfg, memory, cache, tokens, rate=rate, **options)
    assert len(layers) == len(cfg.attention_names)
    attention = layers[0] if layers else jnp.zeros((*tokens.shape, S))
    return output.logits(recurrent_decoder.output_layer(params, features.dtype), features), attention


def reference(torch, p, cfg, keys, values, summary, sentence):
    """Logits [T, V] and attention [T, S] of one sentence, step by step, as the three papers write it."""

    def cell(params, x, state):
        name = {"gru": "gru_cell", "lstm": "lstm_cell"}[cfg.cell]
        kernels = params.input.w.T, params.state.w.T, params.input.b, params.state.b
        new = getattr(torch._VF, name)(x[None], state if cfg.cell == "lstm" else state[0], *kernels)
        return new if cfg.cell == "lstm" else (new,)

    def attend(s):
        if cfg.attention == "none":
            return summary, torch.zeros(len(keys), dtype=torch.float64)
        if cfg.attention == "additive":
            mapped = torch.tanh(s @ p.attention.query.w + p.attention.query.b + keys @ p.attention.key)
            a = torch.softmax(mapped @ p.attention.score, 0)
        else:
            a = torch.softmax((keys @ p.attention.key if cfg.attention == "general" else keys) @ s, 0)
        return a @ values, a

    states = []
    for first in p.first:
        state = torch.tanh(summary @ first.w + first.b)
        states.append(tuple(part[None] for part in state.chunk(2 if cfg.cell == "lstm" else 1)))
    o, logits, attention = torch.zeros(cfg.out_dim, dtype=torch.float64), [], []
    for token in sentence:
        e = p.embedding.table[token]
        if cfg.wiring == "previous":
            c, a = attend(states[0][0][0])
        y = None
        for i, params in enumerate(p.cells):
            beside = [c] if cfg.wiring == "previous" else [o] if cfg.wiring == "feeding" and i == 0 else []
            states[i] = cell(params, torch.cat([e if i == 0 else y, *beside]), states[i])
            h = states[i][0][0]
            y = y + h if cfg.residual is not None and i + 1 >= cfg.residual else h
        if cfg.wiring != "previous":
            c, a = attend(y)
        top = [y, c, e] if cfg.wiring == "previous" else [y, c]
        o = torch.tanh(torch.cat(top) @ p.map_out.w + p.map_out.b)
        w, b = (p.embedding.table.T, p.output) if cfg.tied_output else (p.output.w, p.output.b)
        logits.append(o @ w + b)
        attention.append(a)
    return torch.stack(logits), torch.stack(attention)


@pytest.mark.parametrize("name", drills_but(CONFIGS, kept=["bahdanau", "luong", "input feeding"]))
def test_logits_attention_and_gradients_equal_loops_of_cells(name):
    torch = pytest.importorskip("torch")
    cfg, params = setup(name)

    def tensor(a):
        return torch.tensor(np.asarray(a), dtype=torch.float64, requires_grad=True)

    leaves, source = jax.tree.map(tensor, params), memory()
    keys, values, summary = tensor(source.keys), tensor(source.values), tensor(source.summary)
    rng = np.random.default_rng(2)
    weights = rng.normal(size=(2, 5, V))
    expected = []
    for b, (n, target) in enumerate(zip(LENGTHS, TARGETS, strict=True)):
        expected.append(reference(torch, leaves, cfg, keys[b, :n], values[b, :n], summary[b], target))
        (expected[-1][0] * torch.tensor(weights[b, : len(target)])).sum().backward()

    def total(params, source):
        logits, attention = decode(params, cfg, source)
        real = (TOKENS != PAD)[..., None]
        return jnp.sum(jnp.where(real, logits * weights.astype(np.float32), 0.0)), (logits, attention)

    gradients, (logits, attention) = jax.jit(jax.grad(total, (0, 1), has_aux=True, allow_int=True))(params, source)
    for b, (n, target) in enumerate(zip(LENGTHS, TARGETS, strict=True)):
        np.testing.assert_allclose(logits[b, : len(target)], expected[b][0].detach(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(attention[b, : len(target), :n], expected[b][1].detach(), rtol=1e-5, atol=1e-5)
    d_params, d_source = gradients

    def same(ours, theirs):
        expected = np.zeros(ours.shape) if theirs.grad is None else theirs.grad
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)

    jax.tree.map(same, d_params, leaves)
    for ours, theirs in ((d_source.keys, keys), (d_source.values, values), (d_source.summary, summary)):
        same(ours, theirs)


@pytest.mark.parametrize("name", drills_but(["gnmt", "luong", "input feeding"], kept=["luong"]))
def test_padding_of_a_target_leaves_the_cache_as_it_was(name):
    cfg, params = setup(name)
    source = recurrent_decoder.prepare(params, cfg, memory())
    cache = recurrent_decoder.init_cache(params, cfg, source, 2)
    advance = jax.jit(recurrent_decoder.advance, static_argnums=1, static_argnames="rate")
    _, _, cache = advance(params, cfg, source, cache, TOKENS[:, :3], rate=0.0)
    nothing = jnp.full((2, 2), PAD, jnp.int32)
    _, _, after = advance(params, cfg, source, cache, nothing, rate=0.0)
    jax.tree.map(np.testing.assert_array_equal, after, cache)


@pytest.mark.parametrize("name", drills_but(["gnmt", "luong", "input feeding"], kept=["gnmt"]))
def test_dropout_stands_on_embeddings_between_layers_and_on_features(name, monkeypatch):
    """One mask an element, no key twice; what is fed to the next step is not dropped."""
    cfg, params = setup(name)
    seen = []

    def record(x, rate, key):
        seen.append((x.shape, rate, tuple(jax.random.key_data(key).tolist())))
        return x

    monkeypatch.setattr(recurrent_decoder, "dropout", record)
    monkeypatch.setattr(recurrent_wirings, "dropout", record)
    decode(params, cfg, memory(), rate=0.3, key=jax.random.key(0))
    shapes = sorted(shape for shape, _, _ in seen)
    assert shapes == sorted([(2, 5, E), *[(2, 5, U)] * (cfg.layers - 1), (2, 5, O)])
    assert {rate for _, rate, _ in seen} == {0.3}
    assert len({key for _, _, key in seen}) == len(seen)


@pytest.mark.parametrize("name", drills_but(["gnmt", "luong", "input feeding"], kept=["gnmt"]))
def test_what_dropout_takes_between_layers_is_all_that_the_upper_ones_read_of_the_lower(name, monkeypatch):
    """Everything dropped is as if their kernels had zeros for it, in a loop over all layers too; residuals stay."""
    cfg, params = setup(name)
    cells = [c.replace(input=c.input.replace(w=c.input.w.at[:U].set(0.0))) for c in params.cells[1:]]
    expected = decode(params.replace(cells=(params.cells[0], *cells)), cfg, memory())
    assert float(jnp.max(jnp.abs(expected[0] - decode(params, cfg, memory())[0]))) > 0.01
    monkeypatch.setattr(recurrent_wirings, "dropout", lambda x, *_: jnp.zeros_like(x))
    jax.tree.map(np.testing.assert_array_equal, decode(params, cfg, memory(), key=jax.random.key(0)), expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 0}, r"^model\.decoder\.layers is 0: a recurrent stack has at least one"),
        ({"residual": 1}, r"^model\.decoder\.residual is 1: the first of 1 layers reads words"),
        ({"out_dim": 0}, r"^model\.decoder\.out_dim is 0: use 1 or more"),
        (
            {"attention": "bahdanau"},
            r"^model\.decoder\.attention is 'bahdanau'; available: additive, dot, general, none",
        ),
        ({"wiring": "feed"}, r"^model\.decoder\.wiring is 'feed'; did you mean 'feeding'\?"),
        (
            {"tied_output": True, "out_dim": 9},
            r"^model\.decoder\.out_dim is 9 with tied_output: .*; make the two equal",
        ),
        (
            {"attention": "dot", "units": 9},
            r"^model\.decoder\.units is 9 with attention 'dot': .* embedding_dim 256 .*or use attention 'general'",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(values, message):
    with pytest.raises(UserError, match=message):
        build(ModelConfig, {"decoder": {"kind": "recurrent", **values}}, "model")
