"""The recurrent encoder against PyTorch's packed stacks, and its rules."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.recurrent import encoder as recurrent_encoder
from convs2s_jax.models.recurrent.encoder import RecurrentEncoderConfig
from tests.helpers import drills_but, padded
from tests.models.laws import filled

V, E, U = 11, 5, 4
SENTENCES = [[5, 6, 7, 8, 9, EOS], [10, 4, EOS], [EOS]]
CONFIGS = {
    "one layer": {"bidirectional": 0},
    "both directions": {"layers": 3, "bidirectional": 3},
    "gnmt": {"layers": 4, "bidirectional": 1, "residual": 3},
    "upward only, residual": {"layers": 3, "bidirectional": 0, "residual": 2},
}


def setup(cell, name):
    """A config and parameters in which nothing is zero."""
    cfg = build(RecurrentEncoderConfig, {"cell": cell, "units": U, **CONFIGS[name]})
    init = partial(recurrent_encoder.init, cfg=cfg, vocabulary=V, dim=E, rate=0.1)
    return cfg, filled(jax.eval_shape(init, jax.random.key(0)), 0.5)


def encode(params, cfg, src, **options):
    return recurrent_encoder.encode(params, cfg, src, rate=0.1, gradient_scale=1.0, **options)


def reference(torch, leaves, cfg, sentence):
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
        [*zip(itertools.cycle(["gru", "lstm"]), CONFIGS, strict=False), ("lstm", "gnmt")],
        kept=[("gru", "one layer")],
    ),
)
def test_memory_and_gradients_equal_those_of_pytorch(cell, name):
    """Sentences one by one there, in a batch padded on either side here."""
    torch = pytest.importorskip("torch")
    cfg, params = setup(cell, name)
    leaves = jax.tree.map(lambda a: torch.tensor(np.asarray(a), dtype=torch.float64, requires_grad=True), params)
    expected = [reference(torch, leaves, cfg, sentence) for sentence in SENTENCES]
    rng = np.random.default_rng(1)
    weights = [(rng.normal(size=(len(s), E)), rng.normal(size=E)) for s in SENTENCES]
    pairs = zip(expected, weights, strict=True)
    sum((z * torch.tensor(a)).sum() + (s * torch.tensor(b)).sum() for (z, s), (a, b) in pairs).backward()
    for left in (False, True):
        at = [slice(-len(s), None) if left else slice(len(s)) for s in SENTENCES]

        @jax.jit
        def total(params, left=left, at=at):
            memory = encode(params, cfg, padded(SENTENCES, 7, left))
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


def test_dropout_stands_on_embeddings_between_layers_and_on_the_last_outputs(monkeypatch):
    cfg, params = setup("lstm", "gnmt")
    seen = []
    monkeypatch.setattr(
        recurrent_encoder, "dropout", lambda x, rate, key: seen.append((x.shape, rate, jax.random.key_data(key))) or x
    )
    encode(params, cfg, padded(SENTENCES, 7), key=jax.random.key(0))
    assert [shape for shape, _, _ in seen] == [(3, 7, E), (3, 7, 2 * U), (3, 7, U), (3, 7, U), (3, 7, U)]
    assert {rate for _, rate, _ in seen} == {0.1}
    assert len({tuple(np.asarray(key).tolist()) for _, _, key in seen}) == len(seen)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 0}, r"^model\.encoder\.layers is 0: a recurrent stack has at least one; use 1 or more"),
        ({"layers": 2**31 - 1}, r"^model\.encoder\.layers is 2147483647: use at most 10000"),
        ({"units": 0}, r"^model\.encoder\.units is 0: use 1 or more"),
        ({"max_length": 1}, r"^model\.encoder\.max_length is 1: a word and its end symbol need two; use 2 or more"),
        ({"cell": "gur"}, r"^model\.encoder\.cell is 'gur'; did you mean 'gru'\?"),
        (
            {"bidirectional": 2},
            r"^model\.encoder\.bidirectional is 2: expected a number of bidirectional layers between 0 and 1$",
        ),
        ({"residual": 1}, r"^model\.encoder\.residual is 1: the first of 1 layers reads words, .*; use 2 up to "),
        ({"layers": 2, "residual": 9}, r"^model\.encoder\.residual is 9: the first of 2 layers reads words, "),
        (
            {"layers": 4, "residual": 2},
            r"^model\.encoder\.residual is 2: .* in layer 2 .* differ; use 3 or more, or set b.* to 4 or at most 0",
        ),
        (
            {"layers": 3, "bidirectional": 2, "residual": 2},
            r"and in layer 3 their sizes differ; use None, or set bidirectional to 3 or at most 0$",
        ),
        ({"layers": [(8, 3)]}, r"^model\.encoder\.layers is \[\(8, 3\)\]: expected an integer"),
        (
            {"positions": True},
            r"^model\.encoder sets 'positions', a field of kind conv.*, but its kind is recurrent: .*; available: bid",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(values, message):
    with pytest.raises(UserError, match=message):
        build(ModelConfig, {"encoder": {"kind": "recurrent", **values}}, "model")


def test_layers_that_all_run_in_both_directions_may_be_residual():
    build(ModelConfig, {"encoder": {"kind": "recurrent", "layers": 3, "bidirectional": 3, "residual": 2}}, "model")
