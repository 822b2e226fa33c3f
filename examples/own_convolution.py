"""A custom kind of convolution with low-rank kernels, registered without changing the package.

    python examples/own_convolution.py

    y_t = b + (sum_j x_{t+j} A_j + a) P        A [K, C, R], P [R, D], rank R

A kind consists of a config, a function that initialises parameters, and one that computes the convolution of a padded
input. The encoder, decoder, training and search then use it like the built-in kinds. The script trains a model with
these convolutions to reverse its source, and translates a sentence.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import convs2s_jax as convs2s
from convs2s_jax.core.config import check, record
from convs2s_jax.models.convolutions import ConvolutionKind
from convs2s_jax.models.convs2s import ConvLayer
from convs2s_jax.nn import affine, convolution, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import DenseForm
from convs2s_jax.training.mesh import ShardingRule

V, EOS, PAD = 12, 2, 1


@record
class LowRankConfig(ConvolutionKind):
    """Options of a low-rank convolution.

    Attributes:
      rank: R, at least 1.
    """

    kind: Literal["low_rank"] = "low_rank"
    rank: int = 8

    def __post_init__(self) -> None:
        check(self.rank >= 1, f"rank is {self.rank}: use 1 or more")


@struct.dataclass
class LowRank:
    """Parameters: A and a in `down`, P and b in `up`. Weight normalisation finds the kernels of each `Affine`."""

    down: Affine
    up: Affine


def init(key: jax.Array, cfg: LowRankConfig, width: int, inputs: int, outputs: int, keep: float) -> LowRank:
    """Return parameters whose outputs have the same variance as those of a dense convolution."""
    one, two = jax.random.split(key)
    return LowRank(
        down=convolution.init(one, width, inputs, cfg.rank, keep=keep), up=affine.init(two, cfg.rank, outputs)
    )


def convolve(params: LowRank, cfg: LowRankConfig, x: jax.Array, form: DenseForm) -> Callable[[jax.Array], jax.Array]:
    """Return the convolution as a function of x with padding: zeros in an encoder, earlier positions in a decoder."""
    del cfg, x
    return lambda padded: linear(params.up, convolution.dense(params.down, padded, form))


def dense(params: LowRank, cfg: LowRankConfig) -> Affine:
    """Return the equivalent dense convolution, for the tables of the decoder's first layer. Optional."""
    del cfg
    return Affine(w=jnp.einsum("KCR,RD->KCD", params.down.w, params.up.w), b=linear(params.up, params.down.b))


convs2s.register_convolution(LowRankConfig, init=init, convolve=convolve, dense=dense)
RULES = (
    ShardingRule("conv/down/w", (None, None, "tensor")),
)  # sharding of A; the package already has a rule for P, `up/w`
LAYERS = (ConvLayer(32, 3),) * 2  # a list such as [(32, 3)] * 2 works too, but type checkers reject it
CFG = convs2s.ModelConfig(
    embedding_dim=32,
    dropout=0.0,
    encoder=convs2s.ConvEncoderConfig(layers=LAYERS, max_positions=16, convolution=LowRankConfig(rank=16)),
    decoder=convs2s.ConvDecoderConfig(layers=LAYERS, out_dim=32, max_positions=16, convolution=LowRankConfig(rank=16)),
)


def pairs(seed: int, rows: int = 32) -> convs2s.Batch:
    """Make a batch of sources of one to six random tokens; each target is its source reversed."""
    rng = np.random.default_rng(seed)
    words = [rng.integers(4, V, rng.integers(1, 7)).tolist() for _ in range(rows)]
    src = [w + [EOS] + [PAD] * (6 - len(w)) for w in words]
    tgt = [w[::-1] + [EOS] + [PAD] * (6 - len(w)) for w in words]
    return convs2s.Batch(src=jnp.array(src, jnp.int32), tgt=jnp.array(tgt, jnp.int32))


def main(
    updates: int = 300,
    axes: convs2s.MeshConfig = convs2s.MeshConfig(data=1, rules=RULES),  # noqa: B008 - a frozen record
) -> tuple[Any, list[float]]:
    """Train the model. Return the parameters and the loss of each update in nats per token."""
    mesh, optimizer = convs2s.make_mesh(axes), optax.adam(3e-3)

    def loss(params: Any, batch: convs2s.Batch, key: jax.Array | None) -> convs2s.LossSums:
        return convs2s.loss(params, CFG, batch, key=key)

    step = convs2s.compile_steps(loss, optimizer, mesh, clip=1.0, rules=axes.rules)
    params = convs2s.init(jax.random.key(0), CFG, source_vocabulary=V, target_vocabulary=V)
    state = convs2s.init_state(convs2s.split_kernels(params, CFG), optimizer)
    state = jax.device_put(state, convs2s.shardings(state, mesh, rules=axes.rules))
    losses = []
    for i in range(updates):
        batch = jax.device_put(pairs(i), convs2s.batch_sharding(mesh))
        state, report = convs2s.update(step, state, [batch], rate=None, key=None)
        losses.append(float(report.loss.nll / report.loss.tokens))
        if (i + 1) % 50 == 0:
            print(f"update {i + 1:3}: {losses[-1]:.3f} nats per token")
    return convs2s.merge_kernels(jax.device_get(state.params)), losses


if __name__ == "__main__":
    trained, _ = main()
    found = convs2s.translate(trained, CFG, convs2s.SearchConfig(beam_size=3), [[4, 5, 6, 7]])
    print("4 5 6 7 ->", *found[0].best.tokens)
