"""The input and the output of a loss."""

from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Array


@struct.dataclass
class Batch:
    """Sentence pairs.

    Attributes:
      src: [B, S] source ids with the end symbol, PAD on the right; whole rows may be PAD.
      tgt: [B, T] target ids, in the same form.
    """

    src: Array
    tgt: Array


@struct.dataclass
class LossSums:
    """Sums over target tokens. They are added over batches and devices, and divided once.

    Attributes:
      loss: the objective, in nats.
      nll: negative log-likelihood without smoothing, in nats.
      tokens: number of real target tokens, end symbols included.
    """

    loss: Array
    nll: Array
    tokens: Array
