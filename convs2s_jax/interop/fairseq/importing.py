"""Convert a fairseq checkpoint to a workdir for `convs2s decode` and `convs2s train`."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import build, override
from convs2s_jax.core.errors import Tell, located
from convs2s_jax.data.bpe_codes import MARK, is_marked
from convs2s_jax.data.pieces import ListedPieces
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.interop.fairseq import dictionaries, families, fconv
from convs2s_jax.interop.fairseq.checkpoint import Checkpoint, laid_out, load
from convs2s_jax.interop.fairseq.recipe import Recipe, recipe
from convs2s_jax.interop.orders import FairseqImport
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Tree
from convs2s_jax.training import optimizer, schedule
from convs2s_jax.training.run.checkpoints import derived_workdir
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.saving import Position
from convs2s_jax.training.step import TrainState


def import_checkpoint(order: FairseqImport, overrides: Sequence[tuple[str, str]], tell: Tell) -> None:
    """Import a checkpoint to a new workdir. On an error, no workdir is written.

    Args:
      order: what to import.
      overrides: (path.to.field, text) pairs of the command line.
      tell: called with messages for the user.

    Raises:
      UserError: a file cannot be used, the model does not match it, or the workdir already exists.
    """
    with derived_workdir.new("--workdir", order.workdir) as part:
        found = load(Path(order.checkpoint))
        with laid_out(found.where):
            trained = recipe(found.args, found.rate, found.epoch)
            model = families.config_from_args(found.args)
        languages = dictionaries.languages(order.source_lang, order.target_lang, found.args)
        vocabularies = dictionaries.read(Path(order.dicts), languages, (order.src_spm, order.tgt_spm), order.bpe_codes)
        cfg = _config(overrides, model, trained, languages, vocabularies)
        with located(found.where):
            params = families.params_from_state_dict(cfg.translator, found.tensors)
        vocabularies = _matched(order, cfg.translator, params, vocabularies, tell)
        params = fconv.as_version_2(params)
        for sentence in trained.lost:
            tell(f"{found.where}: {sentence}")
        moments = jax.jit(optimizer.transformation(cfg.training.optimizer).init)(params)
        if order.momentum:
            trace = _trace(found, cfg, params, tell)
            moments = moments if trace is None else moments._replace(trace=trace)
        state = TrainState(params=params, optimizer=moments, step=jnp.int32(found.updates))
        rates = schedule.start(cfg.training.schedule)
        rates = dataclasses.replace(
            rates,
            rate=rates.rate if found.rate is None else found.rate,
            best=found.best * math.log(2) if trained.keeps_best else rates.best,
        )
        position = Position(schedule=rates, step=found.updates, epoch=found.epoch)
        progress = dataclasses.asdict(position) | {"data": None, derived_workdir.IMPORTED: [order.checkpoint]}
        derived_workdir.write(part, cfg, vocabularies, state, progress)
    tell(f"{order.workdir}: {position.where}; translate with convs2s decode --workdir={order.workdir}")


def _matched(
    order: FairseqImport, cfg: ModelConfig, params: Params, vocabularies: Vocabularies, tell: Tell
) -> Vocabularies:
    """The vocabularies of a model: one for both sides if it shares a table and they are equal.

    Raises:
      UserError: they do not have as many entries as the tables have rows.
    """
    whole = encoder_decoder.with_shared_table(params, cfg)
    dictionaries.check_sizes(vocabularies, (len(whole.encoder.embedding.table), len(whole.decoder.embedding.table)))
    if any(is_marked(side) for side in (vocabularies.src, vocabularies.tgt)):
        tell(
            f"{order.dicts}: dictionary entries end in {MARK}, so the model reads and writes text split with "
            "subword-nmt; for plain text, import with --bpe_codes=FILE, or join its output with "
            "sed -E 's/(@@ )|(@@ ?$)//g'"
        )
    if not cfg.share_embeddings:
        return vocabularies
    if vocabularies.src.fingerprint == vocabularies.tgt.fingerprint:
        return Vocabularies(vocabularies.src, vocabularies.src)
    tell(
        f"{order.dicts}: the two vocabularies differ, but the model shares one table between both sides; it can "
        "translate but cannot be trained further"
    )
    return vocabularies


def _trace(found: Checkpoint, cfg: Config, params: Params, tell: Tell) -> Tree | None:
    """The optimiser's trace from the momentum of a checkpoint; None if it cannot be used, with a reason."""
    why = ""
    if cfg.training.optimizer.kind != "nesterov" or families.family_of_model(cfg.translator) is not fconv:
        why = "only the momentum of fconv models trained with NAG is carried over"
    elif not found.momentum:
        why = "it contains no momentum of NAG"
    elif fconv.version(found.tensors) < 2:
        why = "its weight normalisation has a different form from the one trained here"
    else:
        with located(found.where):
            return families.trace(cfg.translator, params, found.momentum, found.momentum_rate)
    tell(f"{found.where}: momentum starts from zero ({why})")
    return None


def _config(
    overrides: Sequence[tuple[str, str]],
    model: ModelConfig,
    trained: Recipe,
    languages: tuple[str, str],
    vocabularies: Vocabularies,
) -> Config:
    """The configuration of fairseq's arguments, with the overrides of the command line."""
    pieces = all(isinstance(one.segmenter, ListedPieces) for one in (vocabularies.src, vocabularies.tgt))
    sizes = {"src_size": max(5, vocabularies.src.size), "tgt_size": max(5, vocabularies.tgt.size)}
    values: dict[str, Any] = {
        "data": {
            "src": languages[0],
            "tgt": languages[1],
            "vocabulary": {"kind": "bpe" if pieces else "words", "joint": model.share_embeddings, **sizes},
            "batch": trained.batch,
        },
        "model": model,
        "training": trained.training | ({} if pieces else {"bleu_tokenize": "none"}),
        "seed": trained.seed,
    }
    for path, text in overrides:
        values = override(values, path, text)
    return build(Config, values, "config")
