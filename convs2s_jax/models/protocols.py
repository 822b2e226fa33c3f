"""What encoders, decoders and features have to offer: a kind is one config class and one record of functions."""

from collections.abc import Callable
from typing import Any, NamedTuple


def always(cfg: Any) -> bool:
    """What most decoders answer when asked about the memory."""
    del cfg
    return True


def as_they_are(params: Any, cfg: Any) -> Any:
    """Parameters of which nothing is computed beforehand."""
    del cfg
    return params


def unscaled(cfg: Any) -> float:
    """The gradient of a memory that reaches the encoder as it is."""
    del cfg
    return 1.0


class Encoder(NamedTuple):
    """A kind of encoder.

    config: its config class: a field `kind` names it, `max_length` is the longest sequence in tokens, and
        `check_dim(dim)` refuses an embedding size E that does not suit it.
    init(key, cfg, *, vocabulary, dim, rate) -> params.
    encode(params, cfg, src [B, S], *, rate, gradient_scale, key, execution) -> Memory.
    normalised: whether the kernels of its `Affine` records are trained with weight normalisation.
    reads: whether it reads a source; beside one that does not, a decoder that reads no memory is a language model.
    """

    config: type
    init: Callable[..., Any]
    encode: Callable[..., Any]
    normalised: bool
    reads: bool = True


class Decoder(NamedTuple):
    """A kind of decoder.

    config: its config class, as an encoder's.
    init(key, cfg, *, vocabulary, dim, rate) -> params.
    ready(params, cfg) -> parameters that `prepare`, `start`, `advance` and `logits` take in place of params where many
        steps follow, without a key.
    prepare(params, cfg, memory) -> the memory as its layers read it: what `start` and `advance` take in place of a
        memory where many steps follow; B sentences on axis 0 of every leaf, and an attribute `mask` [B, S].
    start(params, cfg, memory, rows) -> cache, rows on axis 0 of every leaf.
    advance(params, cfg, memory, cache, tokens [N, T], *, rate, key, execution) -> features [N, T, O], attention
        [N, T, S], cache. (execution: an `execution.ExecutionConfig`, which changes no result.)
    logits(params, features [..., O]) -> [..., V] in float32 or better.
    gradient_scale(cfg) -> factor on the gradient that reaches the keys of the memory.
    normalised: as in `Encoder`.
    reads(cfg) -> whether it reads the memory.
    attends(cfg) -> whether the attention that `advance` returns says anything; where not, it is zero.
    """

    config: type
    init: Callable[..., Any]
    prepare: Callable[..., Any]
    start: Callable[..., Any]
    advance: Callable[..., Any]
    logits: Callable[..., Any]
    normalised: bool
    ready: Callable[..., Any] = as_they_are
    gradient_scale: Callable[..., float] = unscaled
    reads: Callable[..., bool] = always
    attends: Callable[..., bool] = always


class Features(NamedTuple):
    """A kind of features: what a classifier knows of a text.

    config: its config class, as an encoder's.
    init(key, cfg, *, vocabulary, dim, rate) -> params.
    split(params, cfg) -> what is trained: see `encoder_decoder.split`.
    extract(params, cfg, src [B, S], *, rate, key, execution) -> [B, F]; zero for a row of padding.
    size(cfg, dim) -> F.
    """

    config: type
    init: Callable[..., Any]
    split: Callable[..., Any]
    extract: Callable[..., Any]
    size: Callable[..., int]
