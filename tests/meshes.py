"""Meshes of virtual devices, batches for them, and what equal results are."""

import jax
import numpy as np

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn.trees import path_of
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.step import Batch


def mesh_of(sizes):
    return make(MeshConfig(**dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))))


def sentences(rng, count, longest, vocabulary):
    """Rows of all lengths, the last two without a token."""
    lines = [rng.integers(4, vocabulary, rng.integers(1, longest)).tolist() + [EOS] for _ in range(count - 2)]
    return np.array([line + [PAD] * (longest - len(line)) for line in [*lines, [], []]], np.int32)


def batch(seed, rows, source, target):
    rng = np.random.default_rng(seed)
    return Batch(src=sentences(rng, rows, source, 24), tgt=sentences(rng, rows, target, 20))


def assert_equal_each(ours, theirs, tolerance=1e-5, least=0.0):
    """Relative to the norm of each array, or to the share `least` of all together where that is more."""
    leaves, others = (
        jax.tree_util.tree_leaves_with_path(ours),
        [np.asarray(x, np.float64) for x in jax.tree.leaves(theirs)],
    )
    whole = np.linalg.norm([np.linalg.norm(x) for x in others])
    for (path, a), b in zip(leaves, others, strict=True):
        size = max(np.linalg.norm(b), least * whole)
        assert np.linalg.norm(np.asarray(a, np.float64) - b) <= tolerance * size, path_of(path)
