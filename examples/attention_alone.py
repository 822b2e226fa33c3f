"""One attention layer of the paper, without the rest of the model (section 3.3, equations 1 and 2).

    python examples/attention_alone.py

A decoder state that resembles source position 2 attends to four positions, the last of which is padding. The script
prints the attention weights, then the norm of the gradient of the largest weight with respect to each position's key.
"""

import jax
import jax.numpy as jnp

from convs2s_jax.nn import attention


def main(channels=6, dim=4):
    """Return the inputs and outputs of `attention.attend`, and the gradient [S, E] of the largest weight."""
    keys = jax.random.normal(jax.random.key(1), (1, 4, dim))  # [B, S, E], z in the paper
    values = keys + 0.1  # z + e
    mask = jnp.array([[True, True, True, False]])
    params = attention.init(jax.random.key(0), channels, dim)
    h = jnp.zeros((1, 1, channels))  # [B, T, C], output of the decoder's convolution
    g = 3 * keys[:, 2:3]  # [B, T, E], target embedding; here it resembles source position 2

    out, weights = attention.attend(params, h, g, keys, values, mask)
    print("weights:", " ".join(f"{a:.3f}" for a in weights[0, 0]))

    def largest(keys):
        return attention.attend(params, h, g, keys, values, mask)[1].max()

    slope = jax.grad(largest)(keys)[0]
    print("slope:  ", " ".join(f"{jnp.linalg.norm(row):.3f}" for row in slope))
    return params, (h, g, keys, values, mask), (out, weights), slope


if __name__ == "__main__":
    main()
