"""The whole model as one module of Flax: Linen and NNX, each around the pure functions of `models.encoder_decoder`.

Parameters are the records of the pure functions, kernels as direction and length (`encoder_decoder.split`), as the
training loop trains them.
"""

from typing import Any

import jax
from flax import linen, nnx

from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.checks import check_pairs
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.models.memory import Memory
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Array, Key, Tree


class LinenModel(linen.Module):
    """An encoder-decoder as a Linen module.

    `init(key, src, tgt)` makes `{"params": {"model": Params}}`. An rng named "dropout" turns dropout on; without it
    there is no dropout.

    Attributes:
      cfg: the model.
      source_vocabulary: V of the source.
      target_vocabulary: V of the target.
    """

    cfg: ModelConfig
    source_vocabulary: int
    target_vocabulary: int

    def setup(self) -> None:
        """The parameter "model"."""
        self.model = self.param("model", _init, self.cfg, self.source_vocabulary, self.target_vocabulary)

    def __call__(self, src: Array, tgt: Array) -> Array:
        """Logits [B, T, V] of each token of the target given those before it.

        Args:
          src: [B, S] ids with the end symbol, then PAD.
          tgt: [B, T] likewise, not shifted.
        """
        return _logits(self._params(), self.cfg, src, tgt, self._key())

    def encode(self, src: Array) -> Memory:
        """`encoder_decoder.encode`: source [B, S] to a memory of B sentences."""
        return encoder_decoder.encode(self._params(), self.cfg, src, key=self._key())

    @linen.compact
    def decode(self, memory: Memory, tokens: Array) -> tuple[Array, Array]:
        """`encoder_decoder.decode`, continuing from the collection "cache", which `mutable=["cache"]` returns.

        Args:
          memory: of B sentences.
          tokens: [N, T], the end symbol first; N = B * W rows. The target may be split over calls in any way, with the
            same result.

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
    """An encoder-decoder as an NNX module: every array of its parameters is an `nnx.Param`, of its cache `nnx.Cache`.

    Calls take `rngs` for dropout; without it there is no dropout.
    """

    def __init__(self, cfg: ModelConfig, source_vocabulary: int, target_vocabulary: int, *, rngs: nnx.Rngs) -> None:
        """Fresh parameters, made with `rngs.params()`, for vocabularies of these sizes."""
        self.cfg = cfg
        self.params = nnx.data(_held(_init(rngs.params(), cfg, source_vocabulary, target_vocabulary), nnx.Param))
        self.cache = nnx.data(None)

    def __call__(self, src: Array, tgt: Array, *, rngs: nnx.Rngs | None = None) -> Array:
        """Logits [B, T, V]; arguments as in `LinenModel`."""
        return _logits(self._params(), self.cfg, src, tgt, _dropout(rngs))

    def encode(self, src: Array, *, rngs: nnx.Rngs | None = None) -> Memory:
        """`encoder_decoder.encode`: source [B, S] to a memory of B sentences."""
        return encoder_decoder.encode(self._params(), self.cfg, src, key=_dropout(rngs))

    def init_cache(self, memory: Memory, rows: int) -> None:
        """An empty cache of N = `rows` rows."""
        self.cache = nnx.data(_held(encoder_decoder.init_cache(self._params(), self.cfg, memory, rows), nnx.Cache))

    def decode(self, memory: Memory, tokens: Array, *, rngs: nnx.Rngs | None = None) -> tuple[Array, Array]:
        """`encoder_decoder.decode`, from the cache on, which `init_cache` resets; arguments as in `LinenModel`."""
        if self.cache is None:
            raise ValueError("the module has no cache: call init_cache(memory, rows) before decode")
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
    return encoder_decoder.split(params, cfg)


def _computed(params: Params, cfg: ModelConfig) -> Params:
    """Merged kernels, in the dtype of the computation."""
    return encoder_decoder.cast(weight_norm.merge(params), cfg)


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
