"""The whole model as a Flax module, built on the pure functions of `models.encoder_decoder`.

Parameters are the records of the pure functions, with kernels split into direction and length
(`conversion.split`), as in the training loop. `nnx.bridge.ToNNX(LinenModel(...), rngs=nnx.Rngs(0)).lazy_init(src, tgt)`
is the same model as an NNX module (examples/inside_flax.py).
"""

import jax
from flax import linen

from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.checks import check_pairs
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.models.kinds import Memory
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Array, Key


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
        check_pairs(src, tgt)
        params, cfg, key = self._params(), self.cfg, self._key()
        encoder_key, decoder_key = (None, None) if key is None else jax.random.split(key)
        memory = encoder_decoder.prepare(params, cfg, encoder_decoder.encode(params, cfg, src, key=encoder_key))
        cache = encoder_decoder.init_cache(params, cfg, memory, tgt.shape[0])
        inputs = encoder_decoder.decoder_inputs(tgt)
        return encoder_decoder.decode(params, cfg, memory, cache, inputs, key=decoder_key)[0]

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
        """Merge kernels and cast to the dtype of the computation."""
        return conversion.cast(weight_norm.merge(self.model), self.cfg)

    def _key(self) -> Key | None:
        return self.make_rng("dropout") if self.has_rng("dropout") else None


def _init(key: Key, cfg: ModelConfig, source: int, target: int) -> Params:
    params = encoder_decoder.init(key, cfg, source_vocabulary=source, target_vocabulary=target)
    return conversion.split(params, cfg)
