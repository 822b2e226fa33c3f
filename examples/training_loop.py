"""A short training loop for any mesh: one CPU, several GPUs, a TPU slice.

    python examples/training_loop.py
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/training_loop.py

The second command runs it on eight virtual devices. Both print the same losses up to rounding, because an update does
not depend on the number of devices or on the shape of the mesh.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import convs2s_jax as convs2s

V, EOS, PAD = 12, 2, 1
CFG = convs2s.ModelConfig(
    embedding_dim=32,
    dropout=0.1,
    encoder=convs2s.ConvEncoderConfig(layers=[(32, 3)] * 2, max_positions=16),
    decoder=convs2s.ConvDecoderConfig(layers=[(32, 3)] * 2, out_dim=32, max_positions=16),
)


def pairs(seed, rows=32):
    """Make a batch of sources of one to six random tokens; each target is its source reversed."""
    rng = np.random.default_rng(seed)
    words = [rng.integers(4, V, rng.integers(1, 7)).tolist() for _ in range(rows)]
    src = [w + [EOS] + [PAD] * (6 - len(w)) for w in words]
    tgt = [w[::-1] + [EOS] + [PAD] * (6 - len(w)) for w in words]
    return convs2s.Batch(src=np.array(src, np.int32), tgt=np.array(tgt, np.int32))


def main(updates=200, axes=convs2s.MeshConfig(data=-1, fsdp=1, tensor=1)):  # noqa: B008 - a frozen record
    """Train on a mesh with these axis sizes. Return the loss of each update in nats per token."""
    mesh = convs2s.make_mesh(axes)
    optimizer = optax.adamw(optax.linear_schedule(0.0, 4e-3, transition_steps=20))

    def loss(params, batch, key):
        return convs2s.loss(params, CFG, batch, smoothing=0.1, key=key)

    params = convs2s.init(jax.random.key(0), CFG, source_vocabulary=V, target_vocabulary=V)
    state = convs2s.init_state(convs2s.split_kernels(params, CFG), optimizer)
    state = jax.device_put(state, convs2s.shardings(state, mesh))
    step = convs2s.compile_steps(loss, optimizer, mesh, clip=1.0)
    losses = []
    for i in range(updates):
        batch = jax.device_put(pairs(i), convs2s.batch_sharding(mesh))
        state, report = convs2s.update(step, state, [batch], rate=None, key=jax.random.key(i))
        losses.append(float(report.loss.nll / report.loss.tokens))
        if (i + 1) % 50 == 0:
            print(f"update {i + 1:3} on {mesh.size} device(s): {losses[-1]:.4f} nats per token")
    return jnp.array(losses)


if __name__ == "__main__":
    main()
