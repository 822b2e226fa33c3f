"""Convert a workdir to a fairseq checkpoint with its dictionaries."""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import jax

from convs2s_jax.core import local_copies, stores
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.files import new_folder, open_regular
from convs2s_jax.core.guard import writing_remedy
from convs2s_jax.core.places import joined, scheme_of
from convs2s_jax.data import vocabulary
from convs2s_jax.interop.fairseq import dictionaries, families, recipe
from convs2s_jax.interop.fairseq.checkpoint import Momentum, check_torch, save
from convs2s_jax.interop.orders import FairseqExport
from convs2s_jax.training import schedule
from convs2s_jax.training.run import run_folder, store_copy
from convs2s_jax.training.run.checkpoints import derived_workdir, restoring
from convs2s_jax.training.run.programs import fresh_state
from convs2s_jax.training.run.session import Position


def export_checkpoint(order: FairseqExport, tell: Tell) -> None:
    """Write the checkpoint and its dictionaries; on an error, no file is written.

    Raises:
      UserError: there is no run in the workdir, fairseq cannot represent the model, torch is not installed, or other
        files with these names exist.
    """
    with store_copy.reading(order.workdir, tell) as (workdir, told), _opened(order.output, tell) as output:
        written = _export(order, workdir, output, told)
    tell(written)


@contextlib.contextmanager
def _opened(output: str, tell: Tell) -> Iterator[Path]:
    """Yield the path of the file to write: the output itself, or one that is uploaded with its dictionaries."""
    folder, _, name = output.rpartition("/")
    path = Path(output)
    there = stores.check_object("--output", output) if scheme_of(output) else path.exists() and not path.is_dir()
    _refuse(output, [name] if there else [])  # before the work
    if not scheme_of(output):
        yield path
        return
    with local_copies.outgoing_folder("--output", folder, tell, last=name) as (copy, *_):
        copy.mkdir()
        yield copy / name


def _export(order: FairseqExport, workdir: Path, output: Path, tell: Tell) -> str:
    """`export_checkpoint`, with the folder of the run and the file to write. Return a sentence about it."""
    cfg = run_folder.load_config(workdir)
    family = families.family_of_model(cfg.translator)
    source, target = order.source_lang or cfg.data.src, order.target_lang or cfg.data.tgt
    if source == target:
        raise UserError(f"both sides are named '{source}'; set --source_lang and --target_lang to get two dictionaries")
    check_torch(f"--output={order.output}")  # before the work
    args = recipe.args_of_training(cfg) | family.args(cfg.translator)
    data = order.output.rpartition("/")[0] if scheme_of(order.output) else str(output.parent)
    args |= {"source_lang": source, "target_lang": target, "data": data}
    vocabularies = vocabulary.load(run_folder.vocabulary(workdir))
    sizes = {"source": vocabularies.src.size, "target": vocabularies.tgt.size}
    abstract = jax.eval_shape(lambda key: fresh_state(key, cfg.model, cfg.training, **sizes), jax.random.key(0))
    items = {"params": abstract.params}
    if order.momentum and family.carries_momentum and cfg.training.optimizer.kind == "nesterov":
        items["optimizer"] = abstract.optimizer
    found, position = restoring.restore_items(
        run_folder.checkpoints(workdir),
        items,
        step=order.step,
        metric=cfg.training.best_metric,
        check=partial(run_folder.check_vocabularies, workdir, vocabularies),
        tell=tell,
    )
    mean = derived_workdir.AVERAGED in position  # its optimiser is in its initial state, its scores belong to others
    moments = None
    if "optimizer" in found and not mean:  # b = -lr u with lr = 1, which restores u bit for bit
        moments = Momentum([-value for value in families.state_dict(found["optimizer"].trace).values()], rate=1.0)
    at = Position.of(position)
    if moments is None:
        tell(
            f"{order.output}: there is no optimiser state; fairseq-train goes on after update {at.step} with a new one"
        )
    if cfg.training.optimizer.kind == "adamw":
        tell(
            f"{order.output}: fairseq-train continues with its Adam, which adds eps before bias correction; AdamW "
            "here adds it afterwards"
        )
    if position["batch"] and not mean:
        tell(
            f"{order.output}: fairseq-train starts epoch {position['epoch']} over, although {order.workdir} has "
            "already seen a part of it"
        )
    for language, words in ((source, vocabularies.src), (target, vocabularies.tgt)):
        if odd := dictionaries.split_entries(words):
            tell(
                f"{order.output}: the {language} vocabulary has {counted(len(odd), 'entry', 'entries')} with white "
                f"space inside, such as {odd[0]!r}; fairseq splits text there, so its translations may differ"
            )
    comparable = not mean and not cfg.training.label_smoothing  # fairseq's validation loss is smoothed
    if output.is_dir():
        raise UserError(f"--output={order.output} is a folder; specify a file in it, such as checkpoint.pt")
    tensors, parameters = families.whole_state_dict(cfg.translator, found["params"])
    try:
        with new_folder(output, parents=False) as folder:
            save(
                folder / output.name,
                args=args,
                tensors=tensors,
                parameters=parameters,
                names=recipe.names(cfg.training),
                updates=at.step,
                epoch=at.epoch,
                rate=schedule.rate(cfg.training.schedule, at.schedule, step=max(1, at.step), epoch=at.last_epoch),
                best=at.schedule.best if comparable else math.inf,
                momentum=moments,
            )
            dictionaries.write(vocabularies.src, folder, source)
            dictionaries.write(vocabularies.tgt, folder, target)
            beside = ", ".join(sorted({path.name for path in folder.iterdir()} - {output.name}))
            _move(folder, output, data)
    except OSError as error:
        remedy = writing_remedy(error, "choose another file")
        raise UserError(f"--output={order.output} cannot be written: {error.strerror}; {remedy}") from error
    return f"{order.output}: wrote step {at.step} of {order.workdir}, with {beside} next to it"


def _move(made: Path, output: Path, folder: str) -> None:
    """Move the files into place, the checkpoint last. Only dictionaries with the same content are replaced.

    Args:
      made: folder of the files.
      output: where the checkpoint goes: the output of the order, or a file that is uploaded to it.
      folder: path or address of the folder of the output. Several runs may share its dictionaries.
    """
    paths = sorted(made.iterdir(), key=lambda path: path.name == output.name)
    there = {path.name: _content(joined(folder, path.name)) for path in paths}
    same = {path.name: path.read_bytes() for path in paths if path.name != output.name}
    taken = [name for name, content in there.items() if content not in (None, same.get(name))]
    _refuse(joined(folder, output.name), taken)
    for path in paths:
        os.replace(path, output.absolute().with_name(path.name))


def _content(place: str) -> bytes | None:
    """Return the content of a file or an object; None if there is none."""
    try:
        if scheme_of(place):
            return stores.read(place)
        with open_regular(place) as file:
            return file.read()
    except FileNotFoundError:
        return None


def _refuse(output: str, there: Sequence[str]) -> None:
    """Raise UserError if the export would overwrite these files."""
    if there:
        raise UserError(f"--output={output} would overwrite {', '.join(there)}; choose a file in a new folder")
