"""The memory, which an encoder returns and a decoder reads."""

from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Array


@struct.dataclass
class Memory:
    """The encoded source.

    Attributes:
      keys: [B, S, E], compared with the queries of attention (z of the paper).
      values: [B, S, E], summed with the attention weights (z + e).
      mask: [B, S], True at real positions.
      summary: [B, E], for decoders that need an initial state. It is the mean of the keys, or the last states of a
        recurrent encoder.
    """

    keys: Array
    values: Array
    mask: Array
    summary: Array
