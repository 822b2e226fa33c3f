"""What an encoder leaves for a decoder to read."""

import flax.struct

from convs2s_jax.nn.types import Array


@flax.struct.dataclass
class Memory:
    """The encoded source.

    keys: [B, S, E], what attention compares with (z of the paper); values: [B, S, E], what it fetches (z + e);
    mask: [B, S], True at real positions; summary: [B, E], for decoders that need a first state: the mean of keys,
    or the last states of a recurrent encoder.
    """

    keys: Array
    values: Array
    mask: Array
    summary: Array
