"""Optimisers against loops in numpy, with rates that change."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.models import conversion
from convs2s_jax.nn.trees import path_of
from convs2s_jax.training import optimizer
from convs2s_jax.training.optimizer import AdamConfig, AdamWConfig, NesterovConfig
from tests.models.small_model import CFG, initialised

RATES = [0.25, 0.25, 0.25, 0.025, 0.025, 0.1, 0.1, 0.4]


def data(seed=0):
    rng = np.random.default_rng(seed)
    start = {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=4)}
    return start, [{name: rng.normal(size=p.shape) for name, p in start.items()} for _ in RATES]


def trained(cfg, start, gradients):
    """Parameters after each update, as the training step applies updates: multiplied by the rate and added."""
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), start)
    transform = optimizer.transformation(cfg)
    state, seen = transform.init(params), []
    for rate, grads in zip(RATES, gradients, strict=True):
        grads = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), grads)
        updates, state = transform.update(grads, state, params)
        params = jax.tree.map(lambda p, u, r=rate: p + jnp.float32(r) * u, params, updates)
        seen.append(params)
    return seen


def loop(kind, cfg, start, gradients):
    """Loops over updates and arrays in numpy.

    nesterov: fairseq's, whose buffer carries -lr, and is corrected when the rate changes. adam: fairseq's, whose eps is
    added before the bias is corrected. adamw: algorithm 1 of Kingma and Ba (2015) with the decay of algorithm 2 of
    Loshchilov and Hutter (2019).
    """
    params, m, v = ({name: by * p for name, p in start.items()} for by in (1, 0, 0))
    before, seen = RATES[0], []
    for t, (rate, grads) in enumerate(zip(RATES, gradients, strict=True), start=1):
        for name, g in grads.items():
            p = params[name] * (1 - rate * cfg.weight_decay)
            if kind == "nesterov":
                old = cfg.momentum * rate / before * m[name]
                p = p + cfg.momentum * old - (1 + cfg.momentum) * rate * g
                m[name] = old - rate * g
            else:
                m[name] = cfg.b1 * m[name] + (1 - cfg.b1) * g
                v[name] = cfg.b2 * v[name] + (1 - cfg.b2) * g * g
                size, root = 1 / (1 - cfg.b1**t), np.sqrt(1 - cfg.b2**t)
                if kind == "adam":
                    p = p - rate * size * root * m[name] / (np.sqrt(v[name]) + cfg.eps)
                else:
                    p = p - rate * size * m[name] / (np.sqrt(v[name]) / root + cfg.eps)
            params[name] = p
        before = rate
        seen.append(dict(params))
    return seen


@pytest.mark.parametrize(
    "cfg",
    [
        *(NesterovConfig(momentum=m, weight_decay=d) for m, d in ((0.0, 0.0), (0.99, 0.0), (0.9, 0.01), (0.9, 0.5))),
        *(AdamConfig(weight_decay=decay) for decay in (0.0, 0.5)),
        AdamConfig(b1=0.5, b2=0.9, eps=0.1, weight_decay=0.5),
        AdamWConfig(weight_decay=0.5),
        AdamWConfig(b1=0.5, b2=0.9, eps=0.1, weight_decay=0.5),
    ],
    ids=lambda cfg: f"{cfg.kind} {cfg.weight_decay}",
)
def test_updates_are_those_of_the_loop_when_rates_change(cfg):
    start, gradients = data()
    # optax's Adam raises a float to an integer power, which strict promotion refuses
    with jax.numpy_dtype_promotion("standard" if cfg.kind == "adamw" else "strict"):
        found = trained(cfg, start, gradients)
    for one, other in zip(found, loop(cfg.kind, cfg, start, gradients), strict=True):
        for name in other:
            np.testing.assert_allclose(one[name], other[name], rtol=2e-5, atol=2e-5)


def test_muon_orthogonalises_the_kernels_of_hidden_layers_and_leaves_the_rest_to_adam():
    """Singular values of a step of Muon are within [0.6, 1.3] times its rate; Adam's first ones are equal."""
    params = conversion.split(initialised().params, CFG)
    made = optax.contrib.muon(1.0, muon_weight_dimension_numbers=optimizer.muon_axes, ns_steps=10)
    rng = np.random.default_rng(0)
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), params)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = made.update(grads, made.init(params), params)
    hidden = 0
    for path, u in jax.tree_util.tree_leaves_with_path(updates):
        if path_of(path).endswith("w/v") and "/output/" not in path_of(path):
            inputs, outputs = u.size // u.shape[-1], u.shape[-1]
            sizes = np.linalg.svd(u.reshape(inputs, outputs), compute_uv=False) / max(1, outputs / inputs) ** 0.5
            assert sizes.min() > 0.6, path_of(path)
            assert sizes.max() < 1.3, path_of(path)
            hidden += 1
        else:
            assert np.ptp(np.abs(u)) < 1e-3, path_of(path)
    assert hidden == 8, "two maps and a convolution on both sides, two maps of the attention"


@pytest.mark.parametrize("limit", [0.0, 0.1, 5.0, 1e9])
def test_clipping_renormalises_all_gradients_together(limit):
    grads = data()[1][0]
    norm = np.sqrt(sum(np.sum(g * g) for g in grads.values()))
    factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
    clipped, found = optimizer.clip_gradients(jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), grads), limit)
    np.testing.assert_allclose(found, norm, rtol=1e-6)
    for name, g in grads.items():
        np.testing.assert_allclose(clipped[name], g * factor, rtol=1e-6)


def test_the_norm_is_enlarged_by_a_millionth_as_fairseqs():
    clipped, _ = optimizer.clip_gradients({"w": jnp.asarray([3e-6, 4e-6], jnp.float32)}, 3e-6)
    np.testing.assert_allclose(clipped["w"], [1.5e-6, 2e-6], rtol=1e-5)  # times 3 / (5 + 1)


def test_gradients_of_zero_are_clipped_to_zero():
    clipped, norm = optimizer.clip_gradients({"w": jnp.zeros(3)}, 0.1)
    assert float(norm) == 0.0
    assert not np.any(clipped["w"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NesterovConfig(momentum=1.0), "momentum is 1.0: use 0 or more and less than 1"),
        (lambda: AdamConfig(b1=-0.1), "b1 is -0.1: use 0 to 0.9999999, since float32 rounds more to 1"),
        (lambda: AdamConfig(b2=1.0), "b2 is 1.0: use 0 to 0.9999999, since float32 rounds more to 1"),
        (lambda: NesterovConfig(weight_decay=-0.1), "weight_decay is -0.1: use 0 or more, such as 1e-4"),
        (lambda: AdamWConfig(b2=1.0), "b2 is 1.0: use 0 to 0.9999999, since float32 rounds more to 1"),
        (lambda: AdamConfig(eps=0.0), "eps is 0.0: use 1.2e-38 or more, since float32 rounds less to 0"),
        (lambda: AdamWConfig(eps=1e-300), "eps is 1e-300: use 1.2e-38 or more, since float32 rounds less to 0"),
        (lambda: AdamConfig(b2=0.99999999), "b2 is 0.99999999: use 0 to 0.9999999, since float32 rounds more to 1"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        make()
