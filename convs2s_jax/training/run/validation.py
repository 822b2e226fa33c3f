"""Loss, outputs and scores of the validation and the test set."""

import json
from pathlib import Path

import jax
from jax.sharding import Mesh

from convs2s_jax.core.files import replace_file
from convs2s_jax.data import loader
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run.inputs import Split, batch_on, planned
from convs2s_jax.training.run.prepare import Run
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import Interrupts
from convs2s_jax.training.run.programs import Programs, merged_kernels
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import LossSums

BEHIND = 2
"""Number of batches that the host may run ahead of the device."""


def measure(
    run: Run,
    programs: Programs,
    params: Tree,
    split: Split,
    *,
    name: str,
    interrupts: Interrupts,
    details: bool = False,
) -> tuple[dict[str, float], list[str]]:
    """Score a split: its loss and, if the configuration requests them, the model's outputs and their scores.

    Args:
      run: configuration and vocabularies.
      programs: of the run.
      params: trained parameters.
      split: at least one line.
      name: unique to this call; see `distributed.barrier`.
      interrupts: checked after each batch.
      details: whether further scores are computed, as for the final test.

    Returns:
      The scores, with the loss in nats per target token as "loss" and others in percent; and the outputs, translations
      or labels, one for each line.

    Raises:
      InterruptedWorkError: a signal arrived meanwhile.
    """
    merged = merged_kernels(params)
    loss = {LOSS: evaluate(run, programs, merged, split, interrupts)}
    if not run.cfg.training.validate_bleu:
        return loss, []
    outputs = predict(run, programs.mesh, merged, split, name=name, interrupts=interrupts)
    return loss | task_of(run.cfg.model).scores(run.cfg, split, outputs, details=details), outputs


def evaluate(run: Run, programs: Programs, params: Tree, split: Split, interrupts: Interrupts) -> float:
    """Return the loss over every line of a split, in nats per target token, without smoothing.

    Lines longer than the model's positions are truncated. Arguments are those of `measure`, but for the merged kernels.
    """
    everything = planned(run.cfg.model, split, run.held_out_shapes)
    sums: list[LossSums] = []
    for batch in loader.load(everything, lambda one: batch_on(programs.mesh, split, everything, one)):
        sums.append(programs.evaluate(params, batch))
        jax.block_until_ready(sums[-1 - BEHIND :][:1])  # the device gets no more work than a signal should wait for
        interrupts.check_together()
    fetched = jax.device_get(sums)
    return sum(float(s.nll) for s in fetched) / sum(int(s.tokens) for s in fetched)


def predict(run: Run, mesh: Mesh, params: Tree, split: Split, *, name: str, interrupts: Interrupts) -> list[str]:
    """Return the model's output for each line of a split. Each process computes its share, and all get all.

    Signals are noticed after each batch, and with several processes after each of `distributed.local_rounds`. Other
    arguments are those of `measure`, but for the merged kernels.
    """
    whole, devices = distributed.local(mesh, params), distributed.own_devices(mesh)
    model, search, target = run.cfg.model, run.cfg.search, run.vocabularies.tgt
    lines: list[str] = []
    for rows in distributed.local_rounds(len(split.src)):
        sources = [split.src[i] for i in rows]
        lines += task_of(model).predict(
            whole, model, search, sources, rows, target, devices=devices, progress=interrupts.check
        )
        interrupts.check_together()
    return distributed.collect(lines, len(split.src), name=name)


def write_samples(folder: Path, step: int, split: Split, hypotheses: list[str]) -> None:
    """Write the first 50 translations, or labels, of a validation as JSON lines: source, hypothesis, reference."""
    folder.mkdir(exist_ok=True)
    lines = list(zip(split.text.src, hypotheses, split.text.tgt, strict=True))[:50]
    records = [{"source": s, "hypothesis": h, "reference": r} for s, h, r in lines]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    replace_file(folder / f"{step}.jsonl", text)
