"""Time fairseq, for benchmarks/peer.py:  PYTHON benchmarks/peer_fairseq.py FOLDER WHAT

Runs under a Python interpreter with fairseq and torch, without this package. benchmarks/peer.md explains how to install
them. FOLDER is written by benchmarks/peer.py: the same sentences in the same sub-words as ours, as ids. WHAT is JSON
with the keys of `Work`. Each line of standard input requests one repeat, and is answered by a line of JSON with the
rate, the rate of torch's matrix product of 2048 x 2048, and the number of tokens or sentences and the seconds.

Training does what fairseq's Trainer does in an update: loss summed over tokens, backward, gradients divided by the
number of target tokens, clipping, optimiser. fairseq creates the batches. Creating and collating them is not timed.
"""

import argparse
import gzip
import json
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from fairseq import utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import Dictionary, LanguagePairDataset, data_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.optim.adam import Adam
from fairseq.optim.nag import NAG
from fairseq.sequence_generator import SequenceGenerator

SIDE = 2048
SPECIAL = 4
"""Ids below are special symbols with the same meaning in both programs: start, padding, end, unknown."""


@dataclass
class Work:
    """What to measure.

    Attributes:
      task: "train" or "decode".
      model: name of a fairseq architecture.
      convolution: "lightweight" or "dynamic", for a light model.
      dtype: "float32", or "bfloat16" for autocast.
      count: number of updates or sentences of a repeat.
      tokens: token budget of a training batch.
      beam: number of hypotheses per sentence.
      rows: number of sentences of a decoding batch.
      symbols: length of every hypothesis, including the end symbol.
      at_least: minimum seconds of a repeat of decoding, which makes at least one pass.
      threads: number of threads of torch.
    """

    task: str
    model: str
    convolution: str = ""
    dtype: str = "float32"
    count: int = 24
    tokens: int = 4000
    beam: int = 5
    rows: int = 64
    symbols: int = 16
    at_least: float = 0.0
    threads: int = 2


def main() -> None:
    """Get ready, then answer each line of standard input."""
    folder, work = Path(sys.argv[1]), Work(**json.loads(sys.argv[2]))
    torch.set_num_threads(work.threads)
    torch.manual_seed(1)
    sizes = json.loads((folder / "sizes.json").read_text())
    task = SimpleNamespace(source_dictionary=dictionary(sizes["source"]), target_dictionary=dictionary(sizes["target"]))
    model = build(work, task)
    repeat = {"train": training, "decode": decoding}[work.task](work, task, model, folder)
    repeat()  # the first is slower
    parameters = sum(p.numel() for p in model.parameters())
    say({"ready": f"torch {torch.__version__}, {work.threads} threads", "parameters": parameters})
    for _ in sys.stdin:
        product = product_rate(work.dtype)
        say({**repeat(), "product": product})


def say(found: dict) -> None:
    """Print one line of JSON."""
    print(json.dumps(found), flush=True)


def dictionary(size: int) -> Dictionary:
    """Return a dictionary with `size` entries, whose symbols are their numbers."""
    made = Dictionary()
    for number in range(SPECIAL, size):
        made.add_symbol(str(number))
    return made


def build(work: Work, task: SimpleNamespace) -> torch.nn.Module:
    """Build a model with random parameters, since speed does not depend on their values."""
    args = argparse.Namespace(
        dropout=0.2, criterion="cross_entropy", max_source_positions=1024, max_target_positions=1024
    )
    flags = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)  # some defaults are defined by flags
    ARCH_MODEL_REGISTRY[work.model].add_args(flags)
    flags.parse_args([], args)
    if work.convolution:
        args.encoder_conv_type = args.decoder_conv_type = work.convolution
    ARCH_CONFIG_REGISTRY[work.model](args)
    return ARCH_MODEL_REGISTRY[work.model].build_model(args, task)


def training(work: Work, task: SimpleNamespace, model: torch.nn.Module, folder: Path):
    """Return the function of one repeat: `count` updates on batches of all lengths."""
    src, tgt = tokens(folder / "train.source.gz"), tokens(folder / "train.target.gz")
    data = LanguagePairDataset(
        src, [len(s) for s in src], task.source_dictionary, tgt, [len(t) for t in tgt], task.target_dictionary
    )
    np.random.seed(1)
    indices = data.ordered_indices()
    batches = data_utils.batch_by_size(
        indices, data.num_tokens, num_tokens_vec=data.num_tokens_vec(indices), max_tokens=work.tokens
    )
    middles = (np.arange(work.count) + 0.5) * len(batches) / work.count  # sorted by length: short, medium and long ones
    samples = [data.collater([data[i] for i in batches[int(at)]]) for at in middles]
    np.random.shuffle(samples)
    criterion = CrossEntropyCriterion(task, sentence_avg=False)
    light = bool(work.convolution)
    parameters = list(model.parameters())
    optimizer = (
        Adam(parameters, lr=1e-4, betas=(0.9, 0.98), weight_decay=1e-4)
        if light
        else NAG(parameters, lr=1e-4, momentum=0.99)
    )
    real = sum(sample["ntokens"] for sample in samples)
    model.train()

    def repeat() -> dict:
        before = time.perf_counter()
        for sample in samples:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16) if work.dtype == "bfloat16" else nullcontext():
                loss, size, _ = criterion(model, sample)
            loss.backward()
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / size)
            utils.clip_grad_norm_(parameters, 0.0 if light else 0.1)
            optimizer.step()
        seconds = time.perf_counter() - before
        return {"rate": real / seconds, "amount": real, "seconds": seconds}

    return repeat


def decoding(work: Work, task: SimpleNamespace, model: torch.nn.Module, folder: Path):
    """Return the function of one repeat: `count` test sentences, sorted by length, hypotheses of equal length."""
    src = sorted(tokens(folder / "test.source.gz")[: work.count], key=len, reverse=True)
    data = LanguagePairDataset(src, [len(s) for s in src], task.source_dictionary)
    starts = range(0, len(src), work.rows)
    samples = [data.collater([data[i] for i in range(a, min(a + work.rows, len(src)))]) for a in starts]
    model.eval()
    model.make_generation_fast_(beamable_mm_beam_size=None if work.beam == 1 else work.beam, need_attn=False)
    generator = SequenceGenerator(
        [model],
        task.target_dictionary,
        beam_size=work.beam,
        max_len_a=0,
        max_len_b=work.symbols - 1,
        min_len=work.symbols - 1,
    )

    def repeat() -> dict:
        before, amount = time.perf_counter(), 0
        while not amount or time.perf_counter() - before < work.at_least:
            with torch.autocast("cpu", torch.bfloat16) if work.dtype == "bfloat16" else nullcontext():
                found = [generator.generate([model], sample) for sample in samples]
            amount += len(src)
        seconds = time.perf_counter() - before
        assert all(len(best[0]["tokens"]) == work.symbols for batch in found for best in batch)
        return {"rate": amount / seconds, "amount": amount, "seconds": seconds}

    return repeat


def tokens(path: Path) -> list[torch.Tensor]:
    """Read sentences as ids, with the end symbol appended."""
    with gzip.open(path, "rt") as file:
        return [torch.tensor([*map(int, line.split()), Dictionary().eos()]) for line in file]


def product_rate(dtype: str) -> float:
    """Return the FLOP/s of a matrix product of size 2048 x 2048, the best of 5."""
    a = torch.randn(SIDE, SIDE).to(getattr(torch, dtype))
    a @ a
    times = []
    for _ in range(5):
        before = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - before)
    return 2 * SIDE**3 / min(times)


if __name__ == "__main__":
    main()
