"""Convolutional sequence to sequence learning (Gehring et al. 2017) as pure JAX functions.

Each public name is imported when it is first used, so that `import convs2s_jax` is fast and initialises no device. See
docs/library.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convs2s_jax.core.config import build, to_dict
    from convs2s_jax.core.errors import UserError
    from convs2s_jax.models.classifier import ClassifierConfig
    from convs2s_jax.models.classifier import init as init_classifier
    from convs2s_jax.models.classifier import logits as classifier_logits
    from convs2s_jax.models.classifier import split as split_classifier
    from convs2s_jax.models.config import ModelConfig, receptive_fields, register_decoder, register_encoder
    from convs2s_jax.models.conversion import average, cast, precompute
    from convs2s_jax.models.conversion import split as split_kernels
    from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig
    from convs2s_jax.models.encoder_decoder import decode, decoder_inputs, encode, init, init_cache, layer_attention
    from convs2s_jax.models.factored_convolutions import register_convolution
    from convs2s_jax.nn.weight_norm import merge as merge_kernels
    from convs2s_jax.search.batching import Batching
    from convs2s_jax.search.beam import beam_search
    from convs2s_jax.search.config import SearchConfig
    from convs2s_jax.search.generate import force
    from convs2s_jax.search.options import search_options
    from convs2s_jax.search.requests import request
    from convs2s_jax.search.translate import score, translate
    from convs2s_jax.training.batch import Batch, check_batch
    from convs2s_jax.training.loss import loss
    from convs2s_jax.training.mesh import MeshConfig
    from convs2s_jax.training.mesh import make as make_mesh
    from convs2s_jax.training.parallel import compile_steps
    from convs2s_jax.training.sharding import batch_sharding, row_shards, shardings
    from convs2s_jax.training.step import LossSums, TrainState, init_state, update
    from convs2s_jax.translation.classifier import load as load_classifier
    from convs2s_jax.translation.translator import load

__all__ = [
    "Batch",
    "Batching",
    "ClassifierConfig",
    "ConvDecoderConfig",
    "ConvEncoderConfig",
    "LossSums",
    "MeshConfig",
    "ModelConfig",
    "SearchConfig",
    "TrainState",
    "UserError",
    "average",
    "batch_sharding",
    "beam_search",
    "build",
    "cast",
    "check_batch",
    "classifier_logits",
    "compile_steps",
    "decode",
    "decoder_inputs",
    "encode",
    "force",
    "init",
    "init_cache",
    "init_classifier",
    "init_state",
    "layer_attention",
    "load",
    "load_classifier",
    "loss",
    "make_mesh",
    "merge_kernels",
    "precompute",
    "receptive_fields",
    "register_convolution",
    "register_decoder",
    "register_encoder",
    "request",
    "row_shards",
    "score",
    "search_options",
    "shardings",
    "split_classifier",
    "split_kernels",
    "to_dict",
    "translate",
    "update",
]

_PLACES = {
    "Batch": "training.batch.Batch",
    "Batching": "search.batching.Batching",
    "ClassifierConfig": "models.classifier.ClassifierConfig",
    "ConvDecoderConfig": "models.convs2s.ConvDecoderConfig",
    "ConvEncoderConfig": "models.convs2s.ConvEncoderConfig",
    "LossSums": "training.step.LossSums",
    "MeshConfig": "training.mesh.MeshConfig",
    "ModelConfig": "models.config.ModelConfig",
    "SearchConfig": "search.config.SearchConfig",
    "TrainState": "training.step.TrainState",
    "UserError": "core.errors.UserError",
    "average": "models.conversion.average",
    "batch_sharding": "training.sharding.batch_sharding",
    "beam_search": "search.beam.beam_search",
    "build": "core.config.build",
    "cast": "models.conversion.cast",
    "check_batch": "training.batch.check_batch",
    "classifier_logits": "models.classifier.logits",
    "compile_steps": "training.parallel.compile_steps",
    "decode": "models.encoder_decoder.decode",
    "decoder_inputs": "models.encoder_decoder.decoder_inputs",
    "encode": "models.encoder_decoder.encode",
    "force": "search.generate.force",
    "init": "models.encoder_decoder.init",
    "init_cache": "models.encoder_decoder.init_cache",
    "init_classifier": "models.classifier.init",
    "init_state": "training.step.init_state",
    "layer_attention": "models.encoder_decoder.layer_attention",
    "load": "translation.translator.load",
    "load_classifier": "translation.classifier.load",
    "loss": "training.loss.loss",
    "make_mesh": "training.mesh.make",
    "merge_kernels": "nn.weight_norm.merge",
    "search_options": "search.options.search_options",
    "precompute": "models.conversion.precompute",
    "receptive_fields": "models.config.receptive_fields",
    "register_convolution": "models.factored_convolutions.register_convolution",
    "register_decoder": "models.config.register_decoder",
    "register_encoder": "models.config.register_encoder",
    "request": "search.requests.request",
    "row_shards": "training.sharding.row_shards",
    "score": "search.translate.score",
    "shardings": "training.sharding.shardings",
    "split_classifier": "models.classifier.split",
    "split_kernels": "models.conversion.split",
    "to_dict": "core.config.to_dict",
    "translate": "search.translate.translate",
    "update": "training.step.update",
}
"""Where each public name is defined, relative to the package."""


def __getattr__(name: str) -> Any:
    """Return a public name, imported from its module at first use."""
    if name not in _PLACES:
        raise AttributeError(f"module 'convs2s_jax' has no attribute '{name}'")
    module, _, attribute = _PLACES[name].rpartition(".")
    value = getattr(import_module(f"convs2s_jax.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
