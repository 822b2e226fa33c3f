"""The softmax layer of a decoder (section 3.2, last equation), with its own kernel or tied to the embedding table."""

import jax

from convs2s_jax.nn import affine
from convs2s_jax.nn.affine import Affine, add_bias, matmul
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.quantized import Quantized
from convs2s_jax.nn.types import Array, Key, accumulation_dtype


def init(key: Key, inputs: int, vocabulary: int, *, tied: bool, keep: float = 1.0) -> Affine | Array:
    """Initialise a map from O = `inputs` to V, or only its bias [V] if the kernel is the embedding table (O = E).

    Args:
      key: key for the kernel and the bias.
      inputs: number of input features O.
      vocabulary: vocabulary size V.
      tied: whether the kernel is the embedding table.
      keep: fraction of the inputs that dropout retains.
    """
    if tied:
        bound = inputs**-0.5
        return jax.random.uniform(key, (vocabulary,), minval=-bound, maxval=bound)
    return affine.init(key, inputs, vocabulary, keep=keep)


def layer(output: Affine | Array, embedding: Embedding, dtype: jax.typing.DTypeLike) -> Affine:
    """Return the softmax layer as a linear map: W_o [O, V] in `dtype`, b_o [V] in float32 or better."""
    w, b = (output.w, output.b) if isinstance(output, Affine) else (embedding.table.T, output)
    return Affine(w=w.astype(dtype), b=b.astype(accumulation_dtype(dtype)))


def columns(softmax: Affine, words: Array) -> Affine:
    """Restrict the softmax layer to `words`: [O, V] and [V], V the number of words."""
    w = softmax.w.columns(words) if isinstance(softmax.w, Quantized) else softmax.w[:, words]
    return Affine(w=w, b=softmax.b[words])


def logits(softmax: Affine, features: Array) -> Array:
    """Compute W_o h + b_o (section 3.2, before the softmax): [..., O] -> [..., V], in float32 or better."""
    return add_bias(matmul(features, softmax.w, accumulation_dtype(features.dtype)), softmax.b)
