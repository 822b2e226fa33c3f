"""Configuration of an encoder-decoder, and checks of which encoders and decoders can be combined."""

from typing import Literal

from convs2s_jax.core.config import check, record
from convs2s_jax.models.convs2s.decoder import ConvDecoderConfig
from convs2s_jax.models.convs2s.encoder import ConvEncoderConfig
from convs2s_jax.models.execution import ExecutionConfig, MatmulPrecision
from convs2s_jax.models.protocols import check_rate
from convs2s_jax.models.table import AnyDecoder, AnyEncoder


@record
class ModelConfig:
    """An encoder-decoder.

    Attributes:
      kind: an encoder with a decoder.
      embedding_dim: embedding size E, the same on both sides.
      dropout: dropout rate, the same everywhere.
      dtype: dtype of products and activations; parameters, softmax and norms stay in float32.
        On CPUs, bfloat16 gains little with jax 0.10. From 0.11 on it is almost twice as fast on processors with
        AMX, and faster on some others (docs/performance.md).
      matmul_precision: precision of products of float32 arrays. "highest" is float32 on every device. "default" keeps
        JAX's setting, which is TF32 on recent NVIDIA GPUs and bfloat16 on TPUs unless you change it. "high" is between
        them. On CPU all three are float32 (docs/reproducibility.md).
      encoder: any kind of encoder.
      decoder: any kind of decoder.
      share_embeddings: use one embedding table for encoder, decoder and softmax (fairseq's share_all_embeddings). It
        requires decoder.tied_output, and one vocabulary for both sides (data.vocabulary.joint).
      execution: how the layers are executed. Results differ at most by rounding.
    """

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    embedding_dim: int = 256
    dropout: float = 0.1
    dtype: Literal["float32", "bfloat16"] = "float32"
    matmul_precision: MatmulPrecision = "default"
    encoder: AnyEncoder = ConvEncoderConfig()
    decoder: AnyDecoder = ConvDecoderConfig()
    share_embeddings: bool = False
    execution: ExecutionConfig = ExecutionConfig()

    def __post_init__(self) -> None:
        check(self.embedding_dim >= 1, f"embedding_dim is {self.embedding_dim}: use 1 or more")
        check_rate("dropout", self.dropout)
        self.encoder.check_dim(self.embedding_dim)
        self.decoder.check_dim(self.embedding_dim)
        reads = self.decoder.reads_memory
        check(
            reads or not self.reads_source,
            "decoder does not read the source, but there is an encoder: let a layer attend, such as "
            "decoder.attention_layers=[1], or set encoder.kind to 'none' for a language model",
        )
        check(
            self.reads_source or not reads,
            "encoder.kind is 'none', but the decoder reads a source: a language model is a convolutional decoder with "
            "decoder.attention_layers=[]",
        )
        check(
            not self.share_embeddings or self.decoder.tied_output,
            "share_embeddings is True, but the softmax has its own kernel: set decoder.tied_output to True",
        )
        check(
            not self.share_embeddings or self.reads_source,
            "share_embeddings is True, but encoder.kind is 'none': there is no table to share; remove the setting",
        )

    @property
    def reads_source(self) -> bool:
        """Whether the model reads a source; if not, it is a language model of the target."""
        return self.encoder.reads_source

    @property
    def max_source(self) -> int:
        """Maximum length of a source in tokens, including its end symbol."""
        return self.encoder.max_length

    @property
    def max_target(self) -> int:
        """Maximum length of a target in tokens, including its end symbol."""
        return self.decoder.max_length

    @property
    def attends(self) -> bool:
        """Whether the decoder returns attention weights over the source tokens."""
        return self.decoder.returns_attention
