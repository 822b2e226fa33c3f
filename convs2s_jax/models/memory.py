"""The memory: the output of an encoder, which a decoder reads."""

from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Array


@struct.dataclass
class Memory:
    """The encoded source.

    Attributes:
      keys: [B, S, E], which attention compares with its queries (z of the paper).
      values: [B, S, E], of which attention takes weighted sums (z + e).
      mask: [B, S], True at real positions.
      summary: [B, E], for decoders that need a first state: the mean of the keys, or the last states of a recurrent
        encoder.
    """

    keys: Array
    values: Array
    mask: Array
    summary: Array
