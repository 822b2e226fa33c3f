"""Compare with fairseq:  python benchmarks/peer.py --data=DIR --fairseq=PYTHON --workdir=runs/peer [--cases beam5 ...]

DIR is a folder with train, valid and test of de and en, plain or gzipped. PYTHON is a Python interpreter with fairseq
and torch; benchmarks/peer.md explains how to set it up. Both programs are loaded and warmed up, then measured in turn
on one machine: fairseq, ours, fairseq, ours. Both read the same sentences split into the same sub-words, so their
softmax layers have the same size. Creating batches is not timed on either side. Each case has its own processes, with
the allocator settings of `convs2s train` or `convs2s decode`. Programs compiled here are kept in WORKDIR/compiled.
"""

import argparse
import dataclasses
import gzip
import json
import multiprocessing
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from likely_words import learner
from machine import describe, positive, product_rate, run_script, spread
from updates import MULTI30K, compiled

from convs2s_jax.commands.shared import read_config
from convs2s_jax.core.platforms import keep_freed_memory
from convs2s_jax.data import parallel_text
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import translate
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.prepare import Run, prepare

T = TypeVar("T")
HERE = Path(__file__).parent
CONFIGS = HERE.parent / "configs"
SYMBOLS = 16
"""Length of every hypothesis, including the end symbol."""
AT_LEAST = 3.0
"""Minimum seconds of a repeat of decoding. A thousand sentences take 0.6 s with beam 1, and other programs can change
such a short time by up to a half."""
DATA = {**MULTI30K, "training.label_smoothing": "0.0"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
      what: description, with the unit of the rates.
      model: name of the preset, in both programs.
      work: fields of `Work` in peer_fairseq.py, for fairseq.
      overrides: overrides of our preset.
      count: number of updates of our repeat; fairseq's is in `work`.
      words: number of likely target words per source word, to which our softmax is restricted; 0 for all. fairseq has
        no shortlists and computes all words.
      int8: whether ours computes with 8-bit integer kernels; fairseq computes with floats.
    """

    what: str
    model: str
    work: dict[str, object]
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)
    count: int = 24
    words: int = 0
    int8: bool = False


def light(convolution: str, count: int, dtype: str = "float32") -> Case:
    """Return a case of lightconv_iwslt_de_en with one of its convolutions. fairseq is slow and gets fewer updates."""
    overrides = {f"model.{side}.convolution": convolution for side in ("encoder", "decoder")}
    special = "" if dtype == "float32" else f", {dtype}"
    return Case(
        f"training {convolution} convolutions{special}, target tokens/s",
        "lightconv_iwslt_de_en",
        {"task": "train", "convolution": convolution, "count": count, "dtype": dtype},
        {**overrides, "model.dtype": dtype},
        count=8,
    )


def beam(size: int, words: int = 0, *, int8: bool = False) -> Case:
    """Return a case that decodes 1,000 sentences of the test set."""
    work = {"task": "decode", "beam": size, "count": 1000, "symbols": SYMBOLS, "at_least": AT_LEAST}
    special = (f", {words} likely words" if words else "") + (", 8-bit integers" if int8 else "")
    what = f"decoding, beam {size}, batch 64{special}, sentences/s"
    return Case(what, "fconv_iwslt_de_en", work, words=words, int8=int8)


CASES = {
    "training": Case("training ConvS2S, target tokens/s", "fconv_iwslt_de_en", {"task": "train", "count": 16}),
    "bfloat16": Case(
        "training ConvS2S, bfloat16, target tokens/s",
        "fconv_iwslt_de_en",
        {"task": "train", "count": 16, "dtype": "bfloat16"},
        {"model.dtype": "bfloat16"},
    ),
    "lightweight": light("lightweight", 4),
    "dynamic": light("dynamic", 2),
    "lightweight_bfloat16": light("lightweight", 4, "bfloat16"),
    "dynamic_bfloat16": light("dynamic", 2, "bfloat16"),
    "beam1": beam(1),
    "beam5": beam(5),
    "beam1_shortlist": beam(1, 50),
    "beam5_shortlist": beam(5, 50),
    "beam1_int8": beam(1, int8=True),
    "beam5_int8": beam(5, int8=True),
}


def main() -> None:
    """Measure the cases in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with train, valid and test of de and en")
    parser.add_argument("--fairseq", required=True, help="a Python interpreter with fairseq and torch")
    parser.add_argument("--workdir", required=True, type=Path, help="folder for sub-words and compiled programs")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=os.cpu_count(), help="threads of torch")
    arguments = parser.parse_args()
    print(in_new_process(describe), flush=True)
    rows = [in_new_process(measure, CASES[name], arguments) for name in arguments.cases]
    print("\n| what | fairseq, min / median / max | ours | ours / fairseq | product, torch / XLA, GFLOP/s |")
    print("|---|---|---|---|---|", *rows, sep="\n")


def in_new_process(work: Callable[..., T], *arguments: object) -> T:
    """Return the result of `work` in a process without the heap and the compiled programs of earlier cases."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def measure(case: Case, arguments: argparse.Namespace) -> str:
    """Measure both programs in turn and return a row of the table."""
    decodes = case.work["task"] == "decode"
    if not decodes:
        keep_freed_memory()  # as the command `train` does
    jax.config.update("jax_compilation_cache_dir", str(arguments.workdir / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    overrides = {"data.dir": arguments.data, **DATA, **case.overrides}
    cfg = read_config(str(CONFIGS / f"fairseq_{case.model}.py"), list(overrides.items()))
    folder = arguments.workdir / case.model
    folder.mkdir(parents=True, exist_ok=True)
    run = prepare(cfg, folder, lambda _: None)
    test = run.vocabularies.src.encode(parallel_text.read(cfg.data, "test").src)
    write(folder, run, test)
    repeat = decoding(cfg, run, test, case) if decodes else training(cfg, run, case.count)
    repeat()  # the first is slower
    work = json.dumps({"model": case.model, "threads": arguments.threads, **case.work})
    command = [arguments.fairseq, str(HERE / "peer_fairseq.py"), str(folder), work]
    theirs, ours, products = [], [], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as fairseq:
        print(f"{case.what}: {answer(fairseq)}", flush=True)
        for _ in range(arguments.repeats):
            print("again", file=fairseq.stdin, flush=True)
            found = answer(fairseq)
            time.sleep(1)  # its threads still spin for a moment
            products.append((found["product"] / 1e9, product_rate(cfg.model.dtype) / 1e9))
            theirs.append(found["rate"])
            ours.append(repeat())
            pair = {"what": case.what, "fairseq": theirs[-1], "ours": ours[-1], "products": products[-1]}
            print(json.dumps(pair), flush=True)
        fairseq.stdin.close()
    torch, xla = (statistics.median(column) for column in zip(*products, strict=True))
    ratios = [ours / theirs for ours, theirs in zip(ours, theirs, strict=True)]
    return f"| {case.what} | {spread(theirs)} | {spread(ours)} | {spread(ratios, 2)} | {torch:.0f} / {xla:.0f} |"


def answer(fairseq: subprocess.Popen) -> dict:
    """Return the next line of JSON that fairseq's side prints. Other lines are messages."""
    for line in fairseq.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise SystemExit(f"{fairseq.args[1]} ended without an answer; its message is above")


def write(folder: Path, run: Run, test: Sequence[Sequence[int]]) -> None:
    """Write the sentences as ids, for fairseq."""
    text = parallel_text.read(run.cfg.data, "train")
    sides = {
        "train.source": run.vocabularies.src.encode(text.src),
        "train.target": run.vocabularies.tgt.encode(text.tgt),
        "test.source": test,
    }
    for name, sentences in sides.items():
        with gzip.open(folder / f"{name}.gz", "wt", compresslevel=1) as file:
            file.writelines(" ".join(map(str, ids)) + "\n" for ids in sentences)
    sizes = {"source": run.vocabularies.src.size, "target": run.vocabularies.tgt.size}
    (folder / "sizes.json").write_text(json.dumps(sizes))


def training(cfg: Config, run: Run, count: int) -> Callable[[], float]:
    """Return the function of one repeat, which returns target tokens per second."""
    updates = compiled(cfg, run, count)
    return lambda: updates.targets / updates.through()


def decoding(cfg: Config, run: Run, test: Sequence[Sequence[int]], case: Case) -> Callable[[], float]:
    """Return the function of one repeat, which returns sentences per second, with random parameters."""
    work = case.work
    sizes = {"source_vocabulary": run.vocabularies.src.size, "target_vocabulary": run.vocabularies.tgt.size}
    params = encoder_decoder.init(jax.random.key(1), cfg.model, **sizes)
    params = jax.jit(conversion.precompute, static_argnums=1)(params, cfg.model)
    if case.int8:
        params = jax.jit(conversion.quantize_kernels)(params)
    last = work["symbols"] - 1
    search = SearchConfig(beam_size=work["beam"], max_length_a=0.0, max_length_b=last, min_length=last, stop="fairseq")
    sources = [np.asarray(ids) for ids in test[: work["count"]]]
    few = learner(cfg.data, run.vocabularies)(case.words) if case.words else None

    def repeat() -> float:
        before, passes = time.perf_counter(), 0
        while not passes or time.perf_counter() - before < work["at_least"]:
            found = translate(params, cfg.model, search, sources, shortlist=few)
            passes += 1
        seconds = time.perf_counter() - before
        assert all(len(one.best.tokens) == last for one in found)
        return passes * len(sources) / seconds

    return repeat


if __name__ == "__main__":
    run_script(main)
