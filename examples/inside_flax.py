"""The model as a Flax module, trained with Flax's own training state, first in Linen and then in NNX.

    python examples/inside_flax.py

The script prints the loss of each update for both. They start from the same parameters and train on the same batch, so
the losses agree.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.train_state import TrainState

import convs2s_jax as convs2s
from convs2s_jax.interop.flax import LinenModel, NNXModel

V, EOS, PAD = 12, 2, 1
CFG = convs2s.ModelConfig(
    embedding_dim=16,
    encoder=convs2s.ConvEncoderConfig(layers=[(16, 3)]),
    decoder=convs2s.ConvDecoderConfig(layers=[(16, 3)], out_dim=16),
)
SRC = jnp.array([[5, 6, 7, EOS], [8, EOS, PAD, PAD]])
TGT = jnp.array([[7, 6, 5, EOS], [8, EOS, PAD, PAD]])
OPTIMIZER = optax.adam(0.01)


def mean_loss(logits):
    """Return the mean cross-entropy per target token, excluding padding; logits [B, T, V]."""
    each = optax.softmax_cross_entropy_with_integer_labels(logits, TGT)
    return jnp.sum(each, where=TGT != PAD) / jnp.sum(TGT != PAD)


def with_linen(params, updates):
    """Train a Linen module with Flax's `TrainState`. Return the losses."""
    model = LinenModel(CFG, V, V)
    state = TrainState.create(apply_fn=model.apply, params={"model": params}, tx=OPTIMIZER)

    @jax.jit
    def step(state):
        def loss(params):
            return mean_loss(state.apply_fn({"params": params}, SRC, TGT))

        value, gradient = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradient), value

    losses = []
    for _ in range(updates):
        state, value = step(state)
        losses.append(float(value))
    return losses


def with_nnx(params, updates):
    """Train an NNX module with `nnx.Optimizer`. Return the losses."""
    model = NNXModel(CFG, V, V, rngs=nnx.Rngs(0))
    nnx.update(model.params, nnx.state(jax.tree.map(nnx.Param, params)))
    optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        value, gradient = nnx.value_and_grad(lambda model: mean_loss(model(SRC, TGT)))(model)
        optimizer.update(model, gradient)
        return value

    return [float(step(model, optimizer)) for _ in range(updates)]


def main(updates=5):
    """Return the initial parameters, the losses with Linen and the losses with NNX."""
    params = LinenModel(CFG, V, V).init(jax.random.key(0), SRC, TGT)["params"]["model"]
    linen, in_nnx = with_linen(params, updates), with_nnx(params, updates)
    for i, (a, b) in enumerate(zip(linen, in_nnx, strict=True)):
        print(f"update {i}: Linen {a:.5f}  NNX {b:.5f}")
    return params, linen, in_nnx


if __name__ == "__main__":
    main()
