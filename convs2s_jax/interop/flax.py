"""The whole model as a Flax module, in Linen and NNX, built on the pure functions of `models.encoder_decoder`.

Parameters are the records of the pure functions, with kernels split into direction and length
(`conversion.split`), as in the training loop.
"""

from typing import Any

import jax
from flax import linen, nnx

from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.checks import check_pairs
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.models.kinds import Memory
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Array, Key, Tree


class LinenModel(linen.Module):
    """An encoder-decoder as a Linen module.

    `init(key, src, tgt)` returns `{"params": {"model": Params}}`. Dropout is only active if an rng named "dropout" is
    passed.

    Attributes:
      cfg: the model.
      source_vocabulary: size of the source vocabulary.
      target_vocabulary: size V of the target vocabulary.
    """

    cfg: ModelConfig
    source_vocabulary: int
    target_vocabulary: int

    def setup(self) -> None:
        """Create the parameter "model"."""
        self.model = self.param("model", _init, self.cfg, self.source_vocabulary, self.target_vocabulary)

    def __call__(self, src: Array, tgt: Array) -> Array:
        """Logits [B, T, V] of each target token given those before it.

        Args:
          src: [B, S] ids with the end symbol, then PAD.
          tgt: [B, T] ids in the same form, not shifted.
        """
        return _logits(self._params(), self.cfg, src, tgt, self._key())

    def encode(self, src: Array) -> Memory:
        """Encode the source [B, S] to a memory of B sentences (`encoder_decoder.encode`)."""
        return encoder_decoder.encode(self._params(), self.cfg, src, key=self._key())

    @linen.compact
    def decode(self, memory: Memory, tokens: Array) -> tuple[Array, Array]:
        """Decode tokens (`encoder_decoder.decode`), continuing from the collection "cache".

        Apply the module with `mutable=["cache"]` to get the updated cache.

        Args:
          memory: memory of B sentences.
          tokens: [N, T], the end symbol first; N = B * W rows. The result does not depend on how the target is split
            over calls.

        Returns:
          Logits [N, T, V] and attention [N, T, S].
        """
        params = self._params()
        cache = self.variable("cache", "decoder", encoder_decoder.init_cache, params, self.cfg, memory, tokens.shape[0])
        logits, attention, after = encoder_decoder.decode(
            params, self.cfg, memory, cache.value, tokens, key=self._key()
        )
        if not self.is_initializing():
            cache.value = after
        return logits, attention

    def _params(self) -> Params:
        return _computed(self.model, self.cfg)

    def _key(self) -> Key | None:
        return self.make_rng("dropout") if self.has_rng("dropout") else None


class NNXModel(nnx.Module):
    """An encoder-decoder as an NNX module. Its parameters are `nnx.Param` arrays, its cache `nnx.Cache` arrays.

    Dropout is only active in calls with `rngs`.
    """

    def __init__(self, cfg: ModelConfig, source_vocabulary: int, target_vocabulary: int, *, rngs: nnx.Rngs) -> None:
        """Initialise parameters with `rngs.params()`, for vocabularies of these sizes."""
        self.cfg = cfg
        self.params = nnx.data(_held(_init(rngs.params(), cfg, source_vocabulary, target_vocabulary), nnx.Param))
        self.cache = nnx.data(None)

    def __call__(self, src: Array, tgt: Array, *, rngs: nnx.Rngs | None = None) -> Array:
        """Logits [B, T, V]. Arguments are as in `LinenModel`."""
        return _logits(self._params(), self.cfg, src, tgt, _dropout(rngs))

    def encode(self, src: Array, *, rngs: nnx.Rngs | None = None) -> Memory:
        """Encode the source [B, S] to a memory of B sentences (`encoder_decoder.encode`)."""
        return encoder_decoder.encode(self._params(), self.cfg, src, key=_dropout(rngs))

    def init_cache(self, memory: Memory, rows: int) -> None:
        """Create an empty cache of N = `rows` rows."""
        self.cache = nnx.data(_held(encoder_decoder.init_cache(self._params(), self.cfg, memory, rows), nnx.Cache))

    def decode(self, memory: Memory, tokens: Array, *, rngs: nnx.Rngs | None = None) -> tuple[Array, Array]:
        """Decode tokens, continuing from the cache, which `init_cache` resets. Arguments are as in `LinenModel`."""
        if self.cache is None:
            raise ValueError("the module has no cache; call init_cache(memory, rows) before decode")
        cache = _values(self.cache)
        logits, attention, after = encoder_decoder.decode(
            self._params(), self.cfg, memory, cache, tokens, key=_dropout(rngs)
        )
        nnx.update(self.cache, nnx.state(_held(after, nnx.Cache)))
        return logits, attention

    def _params(self) -> Params:
        return _computed(_values(self.params), self.cfg)


def _init(key: Key, cfg: ModelConfig, source: int, target: int) -> Params:
    params = encoder_decoder.init(key, cfg, source_vocabulary=source, target_vocabulary=target)
    return conversion.split(params, cfg)


def _computed(params: Params, cfg: ModelConfig) -> Params:
    """Merge kernels and cast to the dtype of the computation."""
    return conversion.cast(weight_norm.merge(params), cfg)


def _logits(params: Params, cfg: ModelConfig, src: Array, tgt: Array, key: Key | None) -> Array:
    check_pairs(src, tgt)
    encoder_key, decoder_key = (None, None) if key is None else jax.random.split(key)
    memory = encoder_decoder.prepare(params, cfg, encoder_decoder.encode(params, cfg, src, key=encoder_key))
    cache = encoder_decoder.init_cache(params, cfg, memory, tgt.shape[0])
    inputs = encoder_decoder.decoder_inputs(tgt)
    return encoder_decoder.decode(params, cfg, memory, cache, inputs, key=decoder_key)[0]


def _dropout(rngs: nnx.Rngs | None) -> Key | None:
    return None if rngs is None else rngs.dropout()


def _held(tree: Tree, variable: Any) -> Tree:
    return jax.tree.map(variable, tree)


def _values(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x[...], tree, is_leaf=lambda x: isinstance(x, nnx.Variable))
