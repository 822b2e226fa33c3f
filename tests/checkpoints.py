"""A small state whose checkpoints tests save, restore and compare."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.data import vocabulary
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import checkpoint, restoring
from convs2s_jax.training.step import TrainState
from tests.states import first_state

ACCEPT = lambda _: None  # noqa: E731


def state(step):
    rng = np.random.default_rng(step)
    params = {
        "w": jnp.asarray(rng.normal(size=(40, 50)), jnp.float32),
        "half": jnp.asarray(rng.normal(size=(5, 7)), jnp.bfloat16),
        "none": (),
    }
    moments = {"trace": jnp.asarray(rng.normal(size=(40, 50)), jnp.float32), "count": jnp.int32(step), "none": ()}
    return TrainState(params=params, optimizer=(moments, ()), step=jnp.int32(step))


ABSTRACT = jax.eval_shape(lambda: state(0))


def position(step):
    return {"epoch": step // 10, "schedule": {"rate": 0.25, "best": float("inf"), "stopped": ""}}


def save(folder, losses, *, keep=9):
    """Save a checkpoint for each (step, loss) under one manager; returns the steps that stay."""
    with checkpoint.Checkpoints(folder, keep=keep) as checkpoints:
        for step, loss in losses.items():
            scores = None if loss is None else {"loss": loss}
            checkpoint.save(checkpoints, state(step), position(step), scores=scores)
        checkpoint.wait(checkpoints)
        return list(checkpoints.all_steps())


def restore(folder, abstract=ABSTRACT):
    """((state, position) or None, steps left, sentences told); what is damaged is put aside, as when a run begins."""
    told = []
    found = restoring.restore(folder, abstract, check=ACCEPT, tell=told.append)
    for place in found[2] if found else ():
        checkpoint.put_aside(place)
    with checkpoint.Checkpoints(folder, keep=9) as checkpoints:
        return found and found[:2], list(checkpoints.all_steps()), told


def restore_params(folder, abstract, **options):
    """(parameters, position) of a checkpoint, as decoding reads them."""
    found, where = restoring.restore_items(folder, {"params": abstract}, **options)
    return found["params"], where


def assert_bitwise(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def largest(folder, step):
    """The file of a checkpoint that holds most of its arrays."""
    files = [path for path in (folder / str(step) / "params").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def without_updates(run, workdir, *, data):
    """A copy of a run whose only checkpoint is of step 0, with random parameters. `data` None means imported ones."""
    shutil.copytree(run, workdir)
    shutil.rmtree(workdir / "checkpoints")
    cfg, vocabularies = run_folder.load_config(workdir), vocabulary.load(workdir / "vocab")
    state = first_state(jax.random.key(1), cfg.model, cfg.training, source=150, target=150)
    with checkpoint.Checkpoints(workdir / "checkpoints", keep=1) as checkpoints:
        position = {"epoch": 1, "data": data, "vocabularies": run_folder.fingerprints(vocabularies)}
        checkpoint.save(checkpoints, state, position)
        checkpoint.wait(checkpoints)
    return workdir
