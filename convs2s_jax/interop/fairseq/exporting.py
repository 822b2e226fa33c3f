"""Convert a workdir to a fairseq checkpoint with its dictionaries."""

import argparse
import collections
import io
import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from convs2s_jax.core.config import check, literal
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.files import new_folder, writing
from convs2s_jax.core.packages import check_installed
from convs2s_jax.data import vocabulary
from convs2s_jax.interop.fairseq import dictionaries, families, recipe
from convs2s_jax.interop.orders import FairseqExport
from convs2s_jax.training import schedule
from convs2s_jax.training.run import run_folder, store_copy
from convs2s_jax.training.run.checkpoints import derived_workdir, restoring
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs import abstract_state
from convs2s_jax.training.run.saving import Position


def export_checkpoint(order: FairseqExport, tell: Tell) -> None:
    """Write the checkpoint and its dictionaries; on an error, no file is written.

    Raises:
      UserError: there is no run in the workdir, fairseq cannot represent the model, torch is not installed, or other
        files with these names exist.
    """
    output = Path(order.output)
    check(not output.exists(), f"--output={output} already exists; choose another file")  # before the work
    check_installed("writing fairseq checkpoints", ("torch",), "fairseq")
    with store_copy.reading(order.workdir, tell) as (workdir, told):
        cfg = run_folder.load_config(workdir)
        args = recipe.args_of_training(cfg) | families.family_of_model(cfg.translator).args_from_config(cfg.translator)
        own = {"source_lang": cfg.data.src, "target_lang": cfg.data.tgt}
        languages = dictionaries.languages(order.source_lang, order.target_lang, own)
        args |= {"source_lang": languages[0], "target_lang": languages[1], "data": str(output.parent)}
        vocabularies = vocabulary.load(run_folder.vocabulary(workdir))
        content, step = _content(order, workdir, cfg, args, vocabularies, told)
    with writing(f"--output={output}", "choose another file"), new_folder(output) as folder:
        _write(folder / output.name, content)
        dictionaries.write(vocabularies.src, folder, languages[0])
        dictionaries.write(vocabularies.tgt, folder, languages[1])
        beside = sorted({path.name for path in folder.iterdir()} - {output.name})
        for name in beside:  # several checkpoints may share dictionaries
            there = output.with_name(name)
            if there.exists() and there.read_bytes() != (folder / name).read_bytes():
                raise UserError(f"--output={output} would overwrite {name}; choose a file in a new folder")
        for name in (*beside, output.name):
            os.replace(folder / name, output.absolute().with_name(name))
    tell(f"{output}: wrote step {step} of {order.workdir}, with {', '.join(beside)} next to it")


def _content(
    order: FairseqExport,
    workdir: Path,
    cfg: Config,
    args: dict[str, Any],
    vocabularies: vocabulary.Vocabularies,
    tell: Tell,
) -> tuple[dict[str, Any], int]:
    """The dictionary that fairseq saves, with arrays in place of tensors, and the step of the checkpoint."""
    sizes = {"source": vocabularies.src.size, "target": vocabularies.tgt.size}
    abstract = abstract_state(cfg.model, cfg.training, **sizes)
    items = {"params": abstract.params}
    if order.momentum and args["arch"] == "fconv" and args["optimizer"] == "nag":
        items["optimizer"] = abstract.optimizer
    found, record = restoring.restore_items(
        run_folder.checkpoints(workdir),
        items,
        step=order.step,
        metric=cfg.training.best_metric,
        check=partial(run_folder.check_vocabularies, workdir, vocabularies),
        tell=tell,
    )
    mean = derived_workdir.AVERAGED in record  # its optimiser is in its initial state, its scores belong to others
    at = Position.of(record)
    rate = schedule.rate(cfg.training.schedule, at.schedule, step=max(1, at.step), epoch=at.last_epoch)
    comparable = not mean and not cfg.training.label_smoothing  # fairseq's validation loss is smoothed
    tensors, parameters = families.whole_state_dict(cfg.translator, found["params"])
    states, group = {}, {"lr": rate, "weight_decay": args["weight_decay"], "params": list(range(parameters))}
    if args["optimizer"] == "nag":
        group |= {"lr_old": rate, "momentum": args["momentum"]}
    else:
        group |= {"betas": literal(args["adam_betas"]), "eps": args["adam_eps"], "amsgrad": False}
    if "optimizer" in found and not mean:  # b = -lr u with lr = 1, which restores u bit for bit
        group["lr_old"] = 1.0
        buffers = [-value for value in families.state_dict(found["optimizer"].trace).values()]
        states = {i: {"momentum_buffer": buffer} for i, buffer in enumerate(buffers)}
    history = {
        "criterion_name": f"{'LabelSmoothed' if cfg.training.label_smoothing else ''}CrossEntropyCriterion",
        "optimizer_name": "FairseqNAG" if args["optimizer"] == "nag" else "FairseqAdam",
        "lr_scheduler_state": {"lr": rate, "best": at.schedule.best / math.log(2) if comparable else math.inf},
        "num_updates": at.step,
    }
    iterator = {"version": 2, "epoch": at.epoch, "iterations_in_epoch": 0, "shuffle": True}
    content = {
        "args": argparse.Namespace(**args),
        "cfg": None,
        "model": collections.OrderedDict(tensors),
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": iterator, "previous_training_time": 0.0},
        # fairseq would count updates from 0 if there was no state at all
        "last_optimizer_state": {"state": states, "param_groups": [group]},
    }
    return content, at.step


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write values with torch. Arrays become tensors."""
    import torch

    def convert(value: Any) -> Any:
        return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value

    buffer = io.BytesIO()  # on a full disk torch would not raise OSError
    torch.save(jax.tree.map(convert, content), buffer)
    path.write_bytes(buffer.getbuffer())
