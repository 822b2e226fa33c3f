"""A custom loss and optimiser: focal loss (Lin et al. 2017), and Lion with gradient clipping.

    python examples/own_loss_and_optimizer.py

A loss is a function (params, batch, key) -> sums, with one key per row or None. The sums are any pytree with the
attributes `loss` and `tokens`; training minimises loss / tokens. Here they also count correct tokens. The optimiser is
any optax transformation. The script prints the loss and the accuracy while the model learns to reverse its source.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import convs2s_jax as convs2s

V, EOS, PAD = 12, 2, 1
CFG = convs2s.ModelConfig(
    embedding_dim=32,
    dropout=0.0,
    encoder=convs2s.ConvEncoderConfig(layers=[(32, 3)] * 2, max_positions=16),
    decoder=convs2s.ConvDecoderConfig(layers=[(32, 3)] * 2, out_dim=32, max_positions=16),
)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.lion(2e-3))


class Sums(NamedTuple):
    """Sums over the target tokens of a batch, excluding padding."""

    loss: jax.Array
    tokens: jax.Array
    correct: jax.Array


def focal_loss(params, batch, key, gamma=2.0):
    """Sum -(1 - p)^gamma log p over target tokens: well-predicted tokens get little weight. No dropout."""
    memory = convs2s.encode(params, CFG, batch.src)
    cache = convs2s.init_cache(params, CFG, memory, len(batch.tgt))
    inputs = convs2s.decoder_inputs(batch.tgt)
    logits, _, _ = convs2s.decode(params, CFG, memory, cache, inputs)  # [B, T, V]
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.tgt[..., None], axis=-1)[..., 0]
    real = batch.tgt != PAD
    return Sums(
        loss=jnp.sum(-((1 - jnp.exp(log_p)) ** gamma) * log_p, where=real),
        tokens=jnp.sum(real),
        correct=jnp.sum(logits.argmax(axis=-1) == batch.tgt, where=real),
    )


def pairs(seed, rows=32):
    """Make a batch of sources of one to six random tokens; each target is its source reversed."""
    rng = np.random.default_rng(seed)
    words = [rng.integers(4, V, rng.integers(1, 7)).tolist() for _ in range(rows)]
    src = [w + [EOS] + [PAD] * (6 - len(w)) for w in words]
    tgt = [w[::-1] + [EOS] + [PAD] * (6 - len(w)) for w in words]
    return convs2s.Batch(src=jnp.array(src, jnp.int32), tgt=jnp.array(tgt, jnp.int32))


def main(updates=300, loss=focal_loss):
    """Train the model. Return the final state and the sums of each update."""
    params = convs2s.init(jax.random.key(0), CFG, source_vocabulary=V, target_vocabulary=V)
    state = convs2s.init_state(convs2s.split_kernels(params, CFG), OPTIMIZER)
    step = convs2s.compile_steps(loss, OPTIMIZER)
    history = []
    for i in range(updates):
        state, report = convs2s.update(step, state, [pairs(i)], rate=None, key=None)
        history.append(report.loss)
        if (i + 1) % 50 == 0:
            sums = report.loss
            value, correct = sums.loss / sums.tokens, sums.correct / sums.tokens
            print(f"update {i + 1:3}: focal loss {value:.3f}, {correct:.0%} of the tokens correct")
    return state, history


if __name__ == "__main__":
    main()
