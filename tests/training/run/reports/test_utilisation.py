"""Floating-point operations of updates, by hand and by invariances; peaks by the kind of device."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training import mesh as meshes
from convs2s_jax.training.batch import Batch, LossSums
from convs2s_jax.training.parallel import compile_steps
from convs2s_jax.training.run import opening
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import (
    compile_configured,
    compile_run,
    executed_loss,
    loss_of,
    placed_state,
    program_key,
)
from convs2s_jax.training.run.reports.measures import PEAKS, counter, peak_flops
from tests import tiny
from tests.helpers import drills_but
from tests.states import first_state

V, E, B, S, T = 17, 6, 4, 5, 3
BATCH = Batch(src=jnp.zeros((B, S), jnp.int32), tgt=jnp.zeros((B, T), jnp.int32))


def loss_with(network):
    """A loss of `network(params, x)`, x: [B, S, E] that does not depend on parameters."""

    def loss(params, batch, _key):
        x = jnp.ones((*batch.src.shape, E)) * batch.src[..., None].astype(jnp.float32)
        total = jnp.sum(network(params, x))
        return LossSums(loss=total, nll=total, tokens=jnp.int32(1))

    return loss


def flops_of(network, params):
    """Operations of the gradient program of a network."""
    loss = loss_with(network)
    return counter(compile_steps(loss, optax.sgd(1.0)), loss, params)(BATCH)


def test_two_layers_by_hand():
    """Forward both products; backward one for each kernel, and one for what lies between them."""
    params = {"a": jnp.ones((E, 8)), "b": jnp.ones((8, V))}
    rows = B * S
    by_hand = 2 * rows * (E * 8 + 8 * V) + 2 * rows * (E * 8 + 8 * V) + 2 * rows * 8 * V
    assert flops_of(lambda p, x: jnp.sin(x @ p["a"]) @ p["b"], params) == by_hand


def test_a_loop_counts_as_often_as_it_runs_and_a_branch_at_most_once():
    params = {"w": jnp.ones((7, E, E))}

    def looped(p, x):
        return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, p["w"])[0]

    def unrolled(p, x):
        for w in p["w"]:
            x = jnp.sin(x @ w)
        return x

    def branched(p, x):
        return jax.lax.cond(jnp.sum(x) > 0, lambda: looped(p, x), lambda: x)

    counts = [flops_of(f, params) for f in (unrolled, looped, branched)]
    # x itself is no parameter; the loop differentiates it in its first turn too
    once = 2 * B * S * E * E
    assert counts == [once * (7 + 7 + 6), once * 7 * 3, once * 7 * 3]


@pytest.mark.drill
def test_the_count_is_near_that_of_the_compiler():
    """XLA counts elementwise operations too, and bodies of loops once: here layers are wide and not scanned."""
    encoder = {"layers": [[64, 3]] * 3, "max_positions": 64}
    decoder = {"layers": [[64, 3]] * 2, "out_dim": 64, "max_positions": 64}
    cfg = tiny.config(model__encoder=encoder, model__decoder=decoder, model__embedding_dim=64)
    steps, loss = compile_configured(cfg.model, cfg.training), loss_of(cfg.model)
    state = first_state(jax.random.key(0), cfg.model, cfg.training, source=150, target=150)
    batch = Batch(src=jnp.ones((8, 32), jnp.int32), tgt=jnp.ones((8, 24), jnp.int32))
    theirs = steps.first.lower(state.params, batch, jax.random.key(0)).cost_analysis()["flops"]
    assert counter(steps, loss, state.params)(batch) == pytest.approx(theirs, rel=0.2)


def test_each_shape_is_traced_once_to_be_counted_and_computed():
    params, calls = {"w": jnp.ones((E, 8))}, []
    loss = loss_with(lambda p, x: calls.append(x.shape) or x @ p["w"])
    steps = compile_steps(loss, optax.sgd(1.0))
    flops = counter(steps, loss, params)
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x]), BATCH)
    counts = [flops(batch) for batch in (BATCH, twice, BATCH, twice)]
    assert counts == [counts[0], 2 * counts[0]] * 2
    assert len(calls) == 2
    steps.first(params, twice, jax.random.key(0))
    assert len(calls) == 2, "a batch of the same shape was traced again to be computed"


@pytest.mark.parametrize("parallel", drills_but(["shard_map", "pmap"], kept=["shard_map"]))
def test_each_way_to_spread_an_update_has_the_count_of_one_device(parallel):
    def counted(**options):
        cfg = tiny.config(**options, training__label_smoothing=0.1)
        mesh, programs = meshes.make(cfg.mesh, parallel=cfg.parallel), program_key(cfg)
        params = placed_state(programs, mesh, source=V, target=V).params
        return counter(compile_run(programs, mesh), executed_loss(cfg, mesh), params)(BATCH)

    assert counted(mesh__data=2, parallel=parallel) == counted(mesh__data=1)


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),  # a seventh of the GPU
        ("NVIDIA A100-SXM-64GB", None),  # made for one machine, with more multiprocessors
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 PCIe MIG 1g.10gb", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H200 141GB HBM3e", 989.4e12),
        ("NVIDIA H200 NVL", None),
        ("Tesla V100-SXM2-16GB", 125e12),
        ("Tesla V100-PCIE-16GB", 112e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("TPU v55", None),
        ("cpu", None),
    ],
)
def test_the_peak_is_that_of_the_kind_times_the_devices(kind, rate):
    mesh = SimpleNamespace(devices=np.array([[SimpleNamespace(device_kind=kind)] * 3] * 2))
    assert peak_flops(mesh, None) == (None if rate is None else 6 * rate)
    assert peak_flops(mesh, 1e12) == 6e12
    assert all(1e13 < peak < 1e16 for peak in PEAKS.values())


@pytest.mark.drill
def test_a_report_has_the_share_of_a_given_peak(tmp_path, monkeypatch):
    """Two batches an update, two devices."""
    monkeypatch.setattr(opening, "counter", lambda *_: lambda _: 1e6)
    options = {"training__max_steps": 4, "training__validate_every": 100, "data__batch__accumulate": 2}
    train(tiny.config(**options, training__peak_flops=1e9, mesh__data=2), tmp_path)
    line = [line for line in tiny.metrics(tmp_path) if line["split"] == "train"][-1]
    assert line["mfu"] == pytest.approx(2 * 1e6 / line["step_seconds"] / 2e9)


def test_a_peak_is_positive():
    with pytest.raises(
        UserError, match=r"peak_flops is 0.0: use a positive number of operations per second, such as 1.97e14$"
    ):
        tiny.config(training__peak_flops=0)
