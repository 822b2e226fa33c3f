"""Per-example gradients: one gradient for each sentence pair, with vmap of grad.

    python examples/per_example_gradients.py

The script prints the norm of each pair's gradient. The loss is a sum over pairs, so these gradients add up to the
gradient of the batch.
"""

import jax
import jax.numpy as jnp

import convs2s_jax as convs2s

EOS, PAD = 2, 1
CFG = convs2s.ModelConfig(
    embedding_dim=16,
    encoder=convs2s.ConvEncoderConfig(layers=[(16, 3)] * 2),
    decoder=convs2s.ConvDecoderConfig(layers=[(16, 3)] * 2, out_dim=16),
)
BATCH = convs2s.Batch(
    src=jnp.array([[5, 6, 7, 8, EOS], [9, EOS, PAD, PAD, PAD], [4, 4, EOS, PAD, PAD]]),
    tgt=jnp.array([[8, 7, 6, 5, EOS], [9, 9, EOS, PAD, PAD], [4, 4, EOS, PAD, PAD]]),
)


def gradient(params, pair):
    """Return the gradient of the loss of one pair, src [S] and tgt [T], as a batch of one row."""
    row = jax.tree.map(lambda x: x[None], pair)
    return jax.grad(lambda params: convs2s.loss(params, CFG, row).loss)(params)


def norm(tree):
    """Return the Euclidean norm over all leaves of a pytree."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)))


def main(batch=BATCH):
    """Return the parameters, the gradients of B pairs (with a leading axis B on every leaf) and their norms [B]."""
    params = convs2s.init(jax.random.key(0), CFG, source_vocabulary=10, target_vocabulary=10)
    gradients = jax.jit(jax.vmap(gradient, in_axes=(None, 0)))(params, batch)
    norms = jax.vmap(norm)(gradients)
    for i, n in enumerate(norms):
        print(f"pair {i}: gradient of norm {n:.3f}")
    return params, gradients, norms


if __name__ == "__main__":
    main()
