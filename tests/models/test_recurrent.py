"""Recurrent encoders and decoders against PyTorch, one sentence and one step at a time."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import recurrent
from convs2s_jax.models.kinds import Memory, Options
from convs2s_jax.models.recurrent import RecurrentDecoderConfig, RecurrentEncoderConfig
from convs2s_jax.nn import output
from convs2s_jax.nn.recurrent import ATTENTIONS
from tests.helpers import array, drills_but, padded
from tests.models.laws import filled

V, E, U, O, S = 13, 4, 4, 5, 4
EVALUATION = Options()
SENTENCES = [[5, 6, 7, 8, 9, EOS], [10, 4, EOS], [EOS]]
ENCODERS = {
    "one layer": {"bidirectional": 0},
    "both directions": {"layers": 3, "bidirectional": 3},
    "gnmt": {"layers": 4, "bidirectional": 1, "residual": 3},
    "upward only, residual": {"layers": 3, "bidirectional": 0, "residual": 2},
}


def encoder(cell, name):
    """A config and parameters in which nothing is zero."""
    cfg = build(RecurrentEncoderConfig, {"cell": cell, "units": U, **ENCODERS[name]})
    return cfg, filled(jax.eval_shape(lambda key: recurrent.init_encoder(key, cfg, V, E, 0.1), jax.random.key(0)), 0.5)


def encoder_reference(torch, leaves, cfg, sentence):
    """Keys [S, E] and summary [E] of one sentence: PyTorch's modules, layer by layer, on tensors of our kernels."""
    module = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cfg.cell]
    x = leaves.embedding.table[sentence]
    for i, layer in enumerate(leaves.layers):
        both = layer.backward is not None
        stack = module(x.shape[-1], U, bidirectional=both, dtype=torch.float64)
        kernels = {}
        for cell, suffix in ((layer.forward, ""), (layer.backward, "_reverse")):
            if cell is not None:
                kernels["weight_ih_l0" + suffix] = cell.input.w.T
                kernels["weight_hh_l0" + suffix] = cell.state.w.T
                kernels["bias_ih_l0" + suffix] = cell.input.b
                kernels["bias_hh_l0" + suffix] = cell.state.b
        y, last = torch.func.functional_call(stack, kernels, (x[:, None],))
        last = last[0] if cfg.cell == "lstm" else last
        x = x + y[:, 0] if cfg.residual and i + 1 >= cfg.residual else y[:, 0]
    w, b = leaves.map_out.w, leaves.map_out.b
    return x @ w + b, torch.cat([part[0] for part in last]) @ w + b


@pytest.mark.parametrize(
    ("cell", "name"),
    drills_but(
        [*zip(itertools.cycle(["gru", "lstm"]), ENCODERS, strict=False), ("lstm", "gnmt")],
        kept=[("gru", "one layer")],
    ),
)
def test_memory_and_gradients_equal_those_of_pytorch(cell, name):
    """Sentences one by one there, in a batch padded on either side here."""
    torch = pytest.importorskip("torch")
    cfg, params = encoder(cell, name)
    leaves = jax.tree.map(lambda a: torch.tensor(np.asarray(a), dtype=torch.float64, requires_grad=True), params)
    expected = [encoder_reference(torch, leaves, cfg, sentence) for sentence in SENTENCES]
    rng = np.random.default_rng(1)
    weights = [(rng.normal(size=(len(s), E)), rng.normal(size=E)) for s in SENTENCES]
    pairs = zip(expected, weights, strict=True)
    sum((z * torch.tensor(a)).sum() + (s * torch.tensor(b)).sum() for (z, s), (a, b) in pairs).backward()
    for left in (False, True):
        at = [slice(-len(s), None) if left else slice(len(s)) for s in SENTENCES]

        @jax.jit
        def total(params, left=left, at=at):
            memory = recurrent.encode(params, cfg, padded(SENTENCES, 7, left), EVALUATION)
            parts = zip(at, weights, strict=True)
            value = sum(
                jnp.sum(memory.keys[i, own] * a.astype(np.float32)) + jnp.sum(memory.summary[i] * b.astype(np.float32))
                for i, (own, (a, b)) in enumerate(parts)
            )
            return value, memory

        gradients, memory = jax.jit(jax.grad(total, has_aux=True))(params)
        for i, (own, (z, s)) in enumerate(zip(at, expected, strict=True)):
            np.testing.assert_allclose(memory.keys[i, own], z.detach(), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(memory.summary[i], s.detach(), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(memory.values, memory.keys)
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(ours, theirs.grad, rtol=1e-4, atol=1e-4), gradients, leaves
        )


LENGTHS = [4, 2]
TARGETS = [[EOS, 5, 6, 7, 8], [EOS, 11, 12]]
TOKENS = array([row + [PAD] * (5 - len(row)) for row in TARGETS], jnp.int32)
DECODERS = {
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


def decoder(name):
    """A config and parameters in which nothing is zero."""
    cfg = build(RecurrentDecoderConfig, {"units": U, "out_dim": O, **DECODERS[name]})
    return cfg, filled(jax.eval_shape(lambda key: recurrent.init_decoder(key, cfg, V, E, 0.1), jax.random.key(0)), 0.6)


def memory():
    rng = np.random.default_rng(1)
    keys, values = (array(rng.normal(size=(2, S, E))) for _ in range(2))
    summary = array(rng.normal(size=(2, E)))
    return Memory(keys=keys, values=values, mask=jnp.arange(S)[None] < jnp.asarray(LENGTHS)[:, None], summary=summary)


def decode(params, cfg, memory, tokens=TOKENS, options=EVALUATION):
    memory = recurrent.prepare(params, cfg, memory)
    cache = recurrent.init_cache(params, cfg, memory, len(tokens))
    features, layers, _ = recurrent.advance(params, cfg, memory, cache, tokens, options)
    assert len(layers) == len(cfg.attention_names)
    attention = layers[0] if layers else jnp.zeros((*tokens.shape, S))
    return output.logits(output.layer(params.output, params.embedding, features.dtype), features), attention


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


@pytest.mark.parametrize("name", drills_but(DECODERS, kept=["bahdanau", "luong", "input feeding"]))
def test_logits_attention_and_gradients_equal_loops_of_cells(name):
    torch = pytest.importorskip("torch")
    cfg, params = decoder(name)

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


def dropped(monkeypatch, function):
    """Where dropout of rate 0.3 stands in what a function computes; no key twice."""
    seen = []

    def record(x, rate, key):
        seen.append((x.shape, rate, tuple(jax.random.key_data(key).tolist())))
        return x

    monkeypatch.setattr(recurrent, "dropout", record)
    function(Options(0.3, jax.random.key(0)))
    assert {rate for _, rate, _ in seen} == {0.3}
    assert len({key for _, _, key in seen}) == len(seen)
    return sorted(shape for shape, _, _ in seen)


@pytest.mark.parametrize("name", drills_but(["gnmt", "luong", "input feeding"], kept=["gnmt"]))
def test_dropout_stands_on_embeddings_between_layers_and_on_the_last_outputs(name, monkeypatch):
    """One mask an element; what is fed to the next step is not dropped."""
    cfg, params = decoder(name)
    found = dropped(monkeypatch, lambda options: decode(params, cfg, memory(), options=options))
    assert found == sorted([(2, 5, E), *[(2, 5, U)] * (cfg.layers - 1), (2, 5, O)])
    cfg, params = encoder("lstm", "gnmt")
    found = dropped(monkeypatch, lambda options: recurrent.encode(params, cfg, padded(SENTENCES, 7), options))
    assert found == sorted([(3, 7, E), (3, 7, 2 * U), (3, 7, U), (3, 7, U), (3, 7, U)])


# --- attention alone: three hypotheses of each sentence


def attending(name, steps):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return array(rng.normal(size=shape))

    kind, W = ATTENTIONS[name], 3
    shapes = jax.eval_shape(lambda key: kind.init(key, U, E), jax.random.key(0))
    params = jax.tree.map(lambda leaf: normal(*leaf.shape), shapes)
    mask = jnp.arange(S)[None] < jnp.asarray(LENGTHS)[:, None]
    keys, values = normal(2, S, E), normal(2, S, E)
    source = Memory(keys=kind.keys(params, keys), values=values, mask=mask, summary=normal(2, E))
    return params, source, np.float64(keys), np.float64(values), normal(2 * W, steps, U)


def additive(params, s, h):
    return np.dot(params.score, np.tanh(s @ params.query.w + params.query.b + h @ params.key))


SCORES = {"additive": additive, "dot": lambda _, s, h: np.dot(s, h), "general": lambda p, s, h: h @ p.key @ s}


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("name", SCORES)
def test_attention_equals_a_loop_over_each_sentence(name, steps):
    """Three hypotheses a sentence, read side by side; with 7 steps tanh of additive attention is made in chunks."""
    params, source, keys, values, queries = attending(name, steps)
    c, a = jax.jit(partial(recurrent.attend, ATTENTIONS[name]))(params, source, queries)
    params = jax.tree.map(np.asarray, params)
    for n, t in np.ndindex(6, steps):
        length = LENGTHS[n // 3]
        each = [SCORES[name](params, queries[n, t], keys[n // 3, j]) for j in range(length)]
        weights = np.exp(each) / np.sum(np.exp(each))
        np.testing.assert_allclose(a[n, t, :length], weights, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(c[n, t], weights @ values[n // 3, :length], rtol=2e-5, atol=1e-5)
        np.testing.assert_array_equal(a[n, t, length:], 0.0)
