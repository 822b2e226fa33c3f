"""Optimisers against loops in numpy, with rates that change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training import optimizer
from convs2s_jax.training.optimizer import AdamConfig, AdamWConfig, NesterovConfig

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


def fairseq_nag(momentum, start, gradients, decay=0.0):
    """fairseq's buffer carries -lr, and is corrected when the rate changes."""
    params = {name: p.copy() for name, p in start.items()}
    buffer = {name: np.zeros_like(p) for name, p in start.items()}
    before, seen = RATES[0], []
    for rate, grads in zip(RATES, gradients, strict=True):
        correction = rate / before
        for name, g in grads.items():
            params[name] = params[name] * (1 - rate * decay)
            params[name] = params[name] + momentum * momentum * correction * buffer[name] - (1 + momentum) * rate * g
            buffer[name] = momentum * correction * buffer[name] - rate * g
        before = rate
        seen.append(dict(params))
    return seen


def adam(b1, b2, eps, start, gradients, decay=0.0):
    """Algorithm 1 of Kingma and Ba (2015); with decay, algorithm 2 of Loshchilov and Hutter (2019)."""
    params = {name: p.copy() for name, p in start.items()}
    m = {name: np.zeros_like(p) for name, p in start.items()}
    v = {name: np.zeros_like(p) for name, p in start.items()}
    seen = []
    for t, (rate, grads) in enumerate(zip(RATES, gradients, strict=True), start=1):
        for name, g in grads.items():
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            root = np.sqrt(v[name] / (1 - b2**t))
            params[name] = params[name] * (1 - rate * decay)
            params[name] = params[name] - rate * (m[name] / (1 - b1**t)) / (root + eps)
        seen.append(dict(params))
    return seen


def fairseq_adam(b1, b2, eps, start, gradients, decay=0.0):
    """fairseq's loop, whose eps is added before the bias is corrected."""
    params = {name: p.copy() for name, p in start.items()}
    m = {name: np.zeros_like(p) for name, p in start.items()}
    v = {name: np.zeros_like(p) for name, p in start.items()}
    seen = []
    for t, (rate, grads) in enumerate(zip(RATES, gradients, strict=True), start=1):
        step_size = rate * np.sqrt(1 - b2**t) / (1 - b1**t)
        for name, g in grads.items():
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            params[name] = params[name] - rate * decay * params[name]
            params[name] = params[name] - step_size * m[name] / (np.sqrt(v[name]) + eps)
        seen.append(dict(params))
    return seen


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        for name in other:
            np.testing.assert_allclose(one[name], other[name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.99])
def test_nesterov_is_fairseqs_with_its_buffer_when_rates_change(momentum):
    start, gradients = data()
    assert_same(trained(NesterovConfig(momentum=momentum), start, gradients), fairseq_nag(momentum, start, gradients))


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize(("b1", "b2", "eps"), [(0.9, 0.98, 1e-8), (0.5, 0.9, 0.1)])
def test_adam_is_fairseqs(b1, b2, eps, decay):
    start, gradients = data(1)
    found = trained(AdamConfig(b1=b1, b2=b2, eps=eps, weight_decay=decay), start, gradients)
    assert_same(found, fairseq_adam(b1, b2, eps, start, gradients, decay))


@pytest.mark.parametrize(("b1", "b2", "eps"), [(0.9, 0.999, 1e-8), (0.5, 0.9, 0.1)])
def test_adamw_is_the_papers(b1, b2, eps):
    start, gradients = data(3)
    # optax's Adam raises a float to an integer power, which strict promotion refuses
    with jax.numpy_dtype_promotion("standard"):
        found = trained(AdamWConfig(b1=b1, b2=b2, eps=eps, weight_decay=0.5), start, gradients)
    assert_same(found, adam(b1, b2, eps, start, gradients, 0.5))


@pytest.mark.parametrize("decay", [0.01, 0.5])
def test_nesterov_decays_every_array_before_its_update_as_fairseqs(decay):
    """The decay has the rate of its own update; the buffer, corrected at a change of the rate, does not decay."""
    start, gradients = data(2)
    found = trained(NesterovConfig(momentum=0.9, weight_decay=decay), start, gradients)
    assert_same(found, fairseq_nag(0.9, start, gradients, decay))


def test_decay_leaves_the_optimisers_state_as_it_is_without():
    start, gradients = data(4)
    for plain, decayed in (
        (NesterovConfig(), NesterovConfig(weight_decay=0.1)),
        (AdamConfig(), AdamConfig(weight_decay=0.1)),
    ):
        states = [optimizer.transformation(cfg).init(start) for cfg in (plain, decayed)]
        assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    with pytest.raises(ValueError, match="weight decay needs the parameters"):
        optimizer.transformation(NesterovConfig(weight_decay=0.1)).update(gradients[0], states[0])


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
        (lambda: AdamConfig(b1=-0.1), "b1 is -0.1: use 0 or more and less than 1"),
        (lambda: AdamConfig(b2=1.0), "b2 is 1.0: use 0 or more and less than 1"),
        (lambda: NesterovConfig(weight_decay=-0.1), "weight_decay is -0.1: use 0 or more, such as 1e-4"),
        (lambda: AdamWConfig(b2=1.0), "b2 is 1.0: use 0 or more and less than 1"),
        (lambda: AdamConfig(eps=0.0), "eps is 0.0: use more than 0"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        make()
