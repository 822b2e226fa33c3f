"""Convert fairseq checkpoints to workdirs for `convs2s decode` and `convs2s train`."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.core import local_copies, places
from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build, override, to_dict
from convs2s_jax.core.errors import Tell, UserError, located
from convs2s_jax.core.files import LARGEST
from convs2s_jax.data.bpe_codes import MARK
from convs2s_jax.data.pieces import ListedPieces
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.interop.fairseq import dictionaries, families
from convs2s_jax.interop.fairseq.checkpoint import ARGUMENTS, Checkpoint, load
from convs2s_jax.interop.fairseq.fconv import as_version_2, check_directions
from convs2s_jax.interop.fairseq.recipe import Recipe, recipe
from convs2s_jax.interop.orders import FairseqImport
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.conversion import average
from convs2s_jax.training import optimizer, schedule
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import derived_workdir
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.session import Position
from convs2s_jax.training.step import TrainState

_Made = tuple[Config, Vocabularies, TrainState, Position]
"""The contents of a workdir: configuration, vocabularies, parameters and optimiser state, progress of training."""


def import_checkpoints(order: FairseqImport, overrides: Sequence[tuple[str, str]], tell: Tell) -> None:
    """Import checkpoints to new workdirs. On an error, no workdir is written.

    Args:
      order: what to import.
      overrides: (path.to.field, text) pairs of the command line.
      tell: called with messages for the user.

    Raises:
      UserError: a file cannot be used, the model does not match it, or a workdir already exists.
    """
    _check_workdirs(order.workdir)
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(derived_workdir.new("--workdir", place, tell)) for place in order.workdir]
        local, told = stack.enter_context(_localised(order, tell))
        made = [_convert(load(Path(path)), local, overrides, told) for path in local.checkpoint]
        origins = [[path] for path in order.checkpoint]
        if order.average:
            made, origins = [_average(made)], [[*order.checkpoint]]
            what = f"the average of {len(order.checkpoint)} checkpoints"
            tell(f"{what}: momentum starts from zero, since updates belong to a single model")
        for part, (cfg, vocabularies, state, position), origin in zip(parts, made, origins, strict=True):
            progress = dataclasses.asdict(position) | {"data": None, derived_workdir.IMPORTED: origin}
            derived_workdir.write(part, cfg, vocabularies, state, progress)
    for place, (_, _, _, position) in zip(order.workdir, made, strict=True):
        tell(f"{place}: {position.where}; translate with convs2s decode --workdir={place}")


def _check_workdirs(workdirs: Sequence[str]) -> None:
    """Reject workdirs that cannot be written together."""
    if len(workdirs) > 1 and any(places.scheme_of(place) for place in workdirs):
        raise UserError("--workdir lists several workdirs, and not all are local; import one checkpoint at a time")
    named = [places.resolved(place) for place in workdirs]
    for i, place in enumerate(workdirs):
        if named[i] in named[:i]:
            raise UserError(f"--workdir={place} is listed twice; each checkpoint requires its own workdir")


@contextlib.contextmanager
def _localised(order: FairseqImport, tell: Tell) -> Iterator[tuple[FairseqImport, Tell]]:
    """Yield the order with temporary copies of objects in stores, and a `tell` that shows their addresses."""
    copies: dict[str, Path] = {}
    with contextlib.ExitStack() as stack:

        def file(flag: str, name: str, most: int | None = LARGEST, beside: str = "") -> str:
            if name and name not in copies:
                copies[name] = stack.enter_context(local_copies.incoming(flag, name, beside=beside, most=most))
            return str(copies.get(name, ""))

        def near(path: str) -> str:
            return ARGUMENTS if path.endswith(".npz") else ""

        dicts = local_copies.incoming_folder("--dicts", order.dicts, dictionaries.is_name, beginning="dict.")
        local = dataclasses.replace(
            order,
            checkpoint=tuple(file("--checkpoint", path, None, near(path)) for path in order.checkpoint),
            dicts=str(stack.enter_context(dicts)),
            src_spm=file("--src_spm", order.src_spm),
            tgt_spm=file("--tgt_spm", order.tgt_spm),
            bpe_codes=tuple(file("--bpe_codes", path) for path in order.bpe_codes),
            momentum=order.momentum and not order.average,
        )
        folders = {copy.parent: name.rpartition("/")[0] for name, copy in copies.items()}
        for copy, address in {**folders, Path(local.dicts): order.dicts.rstrip("/")}.items():
            tell = local_copies.with_address(tell, copy, address) if places.scheme_of(address) else tell
        yield local, tell


def _convert(found: Checkpoint, order: FairseqImport, overrides: Sequence[tuple[str, str]], tell: Tell) -> _Made:
    """Convert one checkpoint of an order whose files are local."""
    dicts = Path(order.dicts)
    with located(found.where):
        trained = recipe(found.args, found.rate, found.epoch)
    source, target = (getattr(order, name) or found.args.get(name, "") for name in ("source_lang", "target_lang"))
    if not (source and target):
        raise UserError(f"{found.where} does not specify its languages; set --source_lang and --target_lang")
    models = (order.src_spm, order.tgt_spm)
    vocabularies = dictionaries.read(dicts, (source, target), models, order.bpe_codes)
    cfg = _config(found, order.config, overrides, trained, (source, target), vocabularies)
    with located(found.where):
        params = families.params_from_state_dict(cfg.translator, found.tensors)
        check_directions(params)
    whole = encoder_decoder.with_shared_table(params, cfg.translator)
    rows = (len(whole.encoder.embedding.table), len(whole.decoder.embedding.table))
    dictionaries.check_sizes(vocabularies, rows, dicts, (source, target))
    if cfg.translator.share_embeddings:
        one = dictionaries.joined(vocabularies)
        if one is None:
            tell(
                f"{dicts}: the two vocabularies differ, but the model of {found.where} shares one table between "
                "both sides; it can translate but cannot be trained further"
            )
        vocabularies = one or vocabularies
    params = as_version_2(params)
    tell(
        f"{dicts}: dict.{source}.txt and dict.{target}.txt have no checksums, so damage from before this import "
        "goes unnoticed"
    )
    if dictionaries.needs_external_bpe(vocabularies):
        tell(
            f"{dicts}: dictionary entries end in {MARK}, so the model reads and writes text split with "
            "subword-nmt; for plain text, import with --bpe_codes=FILE, or join its output with "
            "sed -E 's/(@@ )|(@@ ?$)//g'"
        )
    unnoticed = f"damage would go unnoticed, since {found.unchecked}; compare it with the original"
    for sentence in [unnoticed] * bool(found.unchecked) + trained.lost:
        tell(f"{found.where}: {sentence}")
    moments = jax.jit(optimizer.transformation(cfg.training.optimizer).init)(params)
    if order.momentum:
        why = found.why
        if cfg.training.optimizer.kind != "nesterov":
            why = f"training.optimizer is '{cfg.training.optimizer.kind}'"
        elif found.momentum is not None:
            with located(found.where):
                trace = families.trace(cfg.translator, params, found.momentum.buffers, found.momentum.rate)
            moments = moments._replace(trace=trace)
        if why:
            tell(f"{found.where}: momentum starts from zero ({why})")
    state = TrainState(params=params, optimizer=moments, step=jnp.int32(found.updates))
    rates = schedule.start(cfg.training.schedule)
    if found.rate is not None:
        rates = dataclasses.replace(rates, rate=found.rate)
    if trained.keeps_best:
        rates = dataclasses.replace(rates, best=found.best * math.log(2))
    return cfg, vocabularies, state, Position(schedule=rates, step=found.updates, epoch=found.epoch)


def _config(
    found: Checkpoint,
    config: str,
    overrides: Sequence[tuple[str, str]],
    trained: Recipe,
    languages: tuple[str, str],
    vocabularies: Vocabularies,
) -> Config:
    """The configuration, in increasing precedence: fairseq's arguments, the --config file, the command line."""
    with located(found.where):
        model = families.config_from_args(found.args)
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
    if config:
        values = _merged(values, read_config(config, []))
    for path, text in overrides:
        values = override(values, path, text)
    return build(Config, values, "config")


def _merged(values: Any, over: Any) -> Any:
    """Update nested dictionaries by `over`. A record of another kind is replaced as a whole."""
    if dataclasses.is_dataclass(values):
        values = to_dict(values)
    if not (isinstance(values, Mapping) and isinstance(over, Mapping)):
        return over
    if over.get("kind", values.get("kind")) != values.get("kind"):
        return over
    return {**values, **{name: _merged(values.get(name), item) for name, item in over.items()}}


def _average(made: Sequence[_Made]) -> _Made:
    """Average the kernels of several models, without momentum, at the training position of the last."""
    cfg, vocabularies, last, position = made[-1]
    same = run_folder.fingerprints(vocabularies)
    for other, words, _, _ in made:
        if other.model != cfg.model or run_folder.fingerprints(words) != same:
            raise UserError("--average: the checkpoints belong to different models; use checkpoints of one run")
    params = conversion.split(jax.jit(average)([state.params for _, _, state, _ in made]), cfg.translator)
    moments = jax.jit(optimizer.transformation(cfg.training.optimizer).init)(params)
    return cfg, vocabularies, TrainState(params=params, optimizer=moments, step=last.step), position
