"""Building blocks of SliceNet (Kaiser, Gomez and Chollet 2018, section 3): steps, modules, attention.

    step(x)      = LN(separable(relu(x)))
    module(x)    = dropout(x + step4(step3(h))),  h = x + step2(step1(x))
    attend(x, m) = LN(x + softmax(q m' / sqrt(E)) m),  q = step6(step5(x + timing))

All layers have E channels. Steps are centred in the encoder and causal in the decoder. Differences from the paper and
from its published code are listed in docs/models.md.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import ITEMS, check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.protocols import check_positions
from convs2s_jax.nn import convolution, factored, layer_norm, struct
from convs2s_jax.nn.attention import context
from convs2s_jax.nn.embedding import position_embeddings
from convs2s_jax.nn.factored import Factored
from convs2s_jax.nn.layer_norm import LayerNorm, normalise
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.positions import sinusoidal
from convs2s_jax.nn.taps import TAPS, normal
from convs2s_jax.nn.types import Array, Key, accumulation_dtype

ATTENTION = ((5, 1), (5, 4))
"""Width and dilation of the two steps that compute the queries of an attention."""
MERGE = ((3, 1),)
"""Width and dilation of the step that merges target and attention before the first module of the decoder."""

SEPARABLE = TAPS["separable"]

Shapes = tuple[tuple[int, int], ...]
"""Width and dilation of each step."""


@record
class SliceNetConfig:
    """Config fields that encoder and decoder share.

    Attributes:
      modules: number of modules.
      kernels: widths of the four steps of each module.
      dilations: dilations of the same steps.
      max_positions: two more than the longest sequence including its end symbol.
    """

    modules: int = 4
    kernels: tuple[int, int, int, int] = (3, 7, 15, 31)
    dilations: tuple[int, int, int, int] = (1, 1, 1, 1)
    max_positions: int = 1024

    def __post_init__(self) -> None:
        check(self.modules >= 1, f"modules is {self.modules}: use 1 or more")
        check(self.modules <= ITEMS, f"modules is {self.modules}: use at most {ITEMS}")
        for name in ("kernels", "dilations"):
            for number in getattr(self, name):
                check(number >= 1, f"{name} contains {number}: use 1 or more")
        check_positions(self.max_positions)

    @property
    def shapes(self) -> Shapes:
        """Width and dilation of each step of a module."""
        return tuple(zip(self.kernels, self.dilations, strict=True))

    @property
    def max_length(self) -> int:
        """Maximum length of a sequence in tokens, including its end symbol."""
        return self.max_positions - 2

    def check_dim(self, dim: int) -> None:
        """Reject an E that the timing signal does not support."""
        check(
            dim >= 4 and dim % 2 == 0,
            f"embedding_dim is {dim}: the timing signal is half sines, half cosines; use an even number of at least 4",
        )


@struct.dataclass
class SliceNetStep:
    """Parameters of one step.

    Attributes:
      conv: the separable convolution.
      norm: the normalisation after it.
    """

    conv: Factored
    norm: LayerNorm


@struct.dataclass
class SliceNetAttention:
    """Parameters of one attention.

    Attributes:
      steps: the two steps that compute the queries.
      norm: the normalisation of the result.
    """

    steps: tuple[SliceNetStep, ...]
    norm: LayerNorm


def init_steps(key: Key, shapes: Shapes, dim: int, inputs: int | None = None) -> tuple[SliceNetStep, ...]:
    """Initialise steps of E = `dim` channels; the first reads `inputs`. `keep` = 2 compensates for the ReLU."""
    made = []
    for k, (width, _) in zip(jax.random.split(key, len(shapes)), shapes, strict=True):
        C = inputs or dim
        conv = factored.init(k, SEPARABLE, normal(width**-0.5), width=width, inputs=C, outputs=dim, heads=C, keep=2.0)
        made.append(SliceNetStep(conv=conv, norm=layer_norm.init(dim)))
        inputs = None
    return tuple(made)


def init_attention(key: Key, dim: int) -> SliceNetAttention:
    """Initialise an attention of E = `dim` channels."""
    return SliceNetAttention(steps=init_steps(key, ATTENTION, dim), norm=layer_norm.init(dim))


def histories(shapes: Shapes, rows: int, dim: int, dtype: jnp.dtype, inputs: int | None = None) -> tuple[Array, ...]:
    """Create zero histories before the first position, one for each step, [N, (K - 1) r, C]."""
    sizes = [inputs or dim] + [dim] * (len(shapes) - 1)
    reaches = [_reach(*shape) for shape in shapes]
    return tuple(jnp.zeros((rows, reach, size), dtype) for reach, size in zip(reaches, sizes, strict=True))


def centred_steps(steps: Sequence[SliceNetStep], shapes: Shapes, x: Array, mask: Array) -> Array:
    """Apply steps of an encoder. Padding is zeroed before each convolution, as beyond the sentence boundary."""
    for step, (width, dilation) in zip(steps, shapes, strict=True):
        x = zero_padding(jax.nn.relu(x), mask)
        convolve = factored.convolution(step.conv, SEPARABLE, x, dilation)
        x = normalise(step.norm, convolution.centred(convolve, x, _reach(width, dilation)))
    return x


def causal_steps(
    steps: Sequence[SliceNetStep], shapes: Shapes, past_inputs: Sequence[Array], x: Array
) -> tuple[Array, tuple[Array, ...]]:
    """Apply steps of a decoder, and return their histories after x."""
    afters = []
    for step, (_, dilation), before in zip(steps, shapes, past_inputs, strict=True):
        x = jax.nn.relu(x)
        y, after = convolution.causal(factored.convolution(step.conv, SEPARABLE, x, dilation), before, x)
        x = normalise(step.norm, y)
        afters.append(after)
    return x, tuple(afters)


def attend(
    params: SliceNetAttention,
    past_inputs: Sequence[Array],
    x: Array,
    timing: Array,
    keys: Array,
    values: Array,
    mask: Array,
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Attend to the source from each position of the target.

    Args:
      params: steps and normalisation.
      past_inputs: histories of the steps.
      x: [N, T, E]; N = B * W, the W hypotheses of a sentence adjacent.
      timing: [N, T, E].
      keys, values: [B, S, E].
      mask: [B, S].

    Returns:
      LN(x + context) [N, T, E]; the weights [N, T, S] in float32 or better; the histories after x.
    """
    q, afters = causal_steps(params.steps, ATTENTION, past_inputs, x + timing)
    q = (q * q.shape[-1] ** -0.5).reshape(len(mask), -1, q.shape[-1])
    scores_BQS = jnp.einsum("BQE,BSE->BQS", q, keys, preferred_element_type=accumulation_dtype(q.dtype))
    c, a = context(scores_BQS, values, mask)
    return normalise(params.norm, x + c.reshape(x.shape)), a.reshape(*x.shape[:2], -1), afters


def timing_of(cfg: SliceNetConfig, tokens: Array, start: Array | None, dim: int, dtype: jnp.dtype) -> Array:
    """Return the timing signal [B, T, E] of tokens [B, T]: sines and cosines of their positions; zero at PAD."""
    table = jnp.asarray(sinusoidal(cfg.max_positions, dim), dtype)
    positions = position_embeddings(table, tokens, start)
    return jnp.where((tokens != PAD)[:, :, None], positions, jnp.zeros((), dtype))


def reach_of(shapes: Shapes) -> int:
    """Return the number of positions that an output of several steps sees besides its own."""
    return sum(_reach(*shape) for shape in shapes)


def _reach(width: int, dilation: int) -> int:
    return (width - 1) * dilation
