"""Compare model kinds:  python benchmarks/family.py --data=DIR --workdir=runs/family [--minutes=14] [--seeds 1 2]

Six configurations configs/multi30k_*.py are trained on the same data with the same vocabularies and token budget, for
about the same total update time. The speed of each is measured first, on an idle machine, and determines its
number of epochs. DIR is a folder with train, valid and test of de and en, plain or gzipped.

Speeds are stored in WORKDIR/speeds.json, the scores of a run in WORKDIR/NAME.SEED.json with the checksum of its log.
After an interruption, the same command continues: a run resumes from its checkpoint, and finished runs are not trained
or scored again. Training may therefore run on a busy machine. With several seeds, the table contains mean and standard
deviation of perplexity and BLEU. Results are in docs/results.md.
"""

import argparse
import dataclasses
import hashlib
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
from machine import describe, positive, product_rate, run_script
from updates import compiled

from convs2s_jax.commands.shared import read_config
from convs2s_jax.data import parallel_text
from convs2s_jax.metrics.scoring import score
from convs2s_jax.models import conversion
from convs2s_jax.search.translate import translate
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.prepare import Run, prepare
from convs2s_jax.translation.translator import load, precomputed

ROOT = Path(__file__).parents[1]
CONFIGS = ["convs2s", "gru", "conv_gru", "separable", "lightconv", "dynamicconv"]
STEPS = 24
"""Number of updates for measuring the speed."""
PASSES = 2
"""How often they are measured in each turn."""
HEAD = (
    "| model | parameters | s/epoch | tokens/s training | epochs | perplexity | BLEU | sentences/s | product, GFLOP/s |"
)


@dataclasses.dataclass
class Kind:
    """A configuration file and the folder of its runs, one for each seed."""

    name: str
    file: Path
    cfg: Config
    workdir: Path

    def run(self, seed: int) -> Path:
        """Return the workdir of a seed."""
        return self.workdir / f"{self.name}.{seed}"


def main() -> None:
    """Measure speeds, train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with train, valid and test of de and en")
    parser.add_argument("--workdir", required=True, type=Path, help="folder for all runs")
    parser.add_argument("--configs", nargs="+", default=CONFIGS, help="names after configs/multi30k_")
    parser.add_argument("--minutes", type=float, default=14.0, help="update time of each model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--repeats", type=positive, default=3, help="repeats of the speed measurement")
    arguments = parser.parse_args()
    print(describe(), flush=True)
    kinds = [kind(name, arguments) for name in arguments.configs]
    rates = speeds(kinds, arguments)
    tokens, batches = epoch_of(kinds[0])
    rows = []
    for one in kinds:
        seconds = tokens / rates[one.name]
        epochs = max(2, int(60 * arguments.minutes / seconds))
        found = []
        for seed in arguments.seeds:
            found.append(scored(one, seed, arguments, bounds(one, epochs, batches)))
            print(one.name, seed, json.dumps(found[-1]), flush=True)
        rows.append(row(one, found, rates[one.name], seconds))
        print(rows[-1], flush=True)
    print(f"\n{HEAD}\n|---|---|---|---|---|---|---|---|---|", *rows, sep="\n")


def kind(name: str, arguments: argparse.Namespace) -> Kind:
    """Return the kind with this name, with its configuration and data."""
    file = ROOT / "configs" / f"multi30k_{name}.py"
    cfg = read_config(str(file), [("data.dir", arguments.data)])
    return Kind(name, file, cfg, arguments.workdir)


def scored(one: Kind, seed: int, arguments: argparse.Namespace, overrides: dict[str, object]) -> dict[str, float | str]:
    """Return the scores of a seed. If they are missing, train and score it first."""
    kept = arguments.workdir / f"{one.name}.{seed}.json"
    if not kept.exists():
        run(one, seed, arguments, overrides)
        kept.write_text(json.dumps({**scores_of(one.run(seed), arguments), "overrides": overrides}))
    found = json.loads(kept.read_text())
    if found.pop("overrides") != overrides:
        sys.exit(f"{kept} is from a run of another length: choose another --workdir, or delete it and its run")
    return found


def run(one: Kind, seed: int, arguments: argparse.Namespace, overrides: dict[str, object]) -> None:
    """Run train.py in a separate process."""
    workdir, given = one.run(seed), {"data.dir": arguments.data, "seed": seed, **overrides}
    command = [sys.executable, str(ROOT / "train.py"), f"--config={one.file}", f"--workdir={workdir}"]
    command += [f"--config.{path}={value}" for path, value in given.items()]
    with (arguments.workdir / f"{workdir.name}.log").open("a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)


def bounds(one: Kind, epochs: int, batches: int) -> dict[str, object]:
    """Return overrides for the number of epochs, with a schedule that ends at a low learning rate.

    A fixed rate is divided by ten before each of the last two epochs; a cosine schedule reaches its end.
    """
    ends = {
        "fixed": {"force_anneal": max(1, epochs - 1)},
        "cosine": {"steps": epochs * batches},
    }[one.cfg.training.schedule.kind]
    return {"training.max_epochs": epochs, **{f"training.schedule.{name}": value for name, value in ends.items()}}


def speeds(kinds: list[Kind], arguments: argparse.Namespace) -> dict[str, float]:
    """Return the median target tokens per second of each kind. If one is unknown, all are measured in turn.

    Programs are compiled in the first turn and kept in WORKDIR/compiled for the others.
    """
    kept = arguments.workdir / "speeds.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    if not {one.name for one in kinds} <= set(found):
        jax.config.update("jax_compilation_cache_dir", str(arguments.workdir / "compiled"))
        data = [prepared(one) for one in kinds]
        rates: dict[str, list[float]] = {one.name: [] for one in kinds}
        for _ in range(arguments.repeats):
            for one, read in zip(kinds, data, strict=True):
                turn = compiled(one.cfg, read, STEPS)
                turn.through()  # warm-up: the first pass is slower
                rates[one.name] += [turn.targets / turn.through() for _ in range(PASSES)]
                told = " ".join(f"{rate:.0f}" for rate in rates[one.name])
                print(f"{one.name}: {told} target tokens/s, product {product_rate() / 1e9:.0f} GFLOP/s", flush=True)
                jax.clear_caches()  # LLVM runs out of memory with the programs of all kinds loaded
        found = {name: statistics.median(all_of) for name, all_of in rates.items()}
        kept.write_text(json.dumps(found))
    return found


def prepared(one: Kind) -> Run:
    """Return the prepared data of a configuration, as in its training run."""
    workdir = one.workdir / f"{one.name}.data"
    workdir.mkdir(parents=True, exist_ok=True)
    return prepare(one.cfg, workdir, lambda _: None)


def epoch_of(one: Kind) -> tuple[int, int]:
    """Return target tokens and batches of an epoch. They are equal for all kinds, which share vocabularies."""
    found = prepared(one)
    return int(found.train.lengths()[1].sum()), found.batches


def lines(workdir: Path, split: str) -> list[dict]:
    """Return the logged metrics of a run for a split."""
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def scores_of(workdir: Path, arguments: argparse.Namespace) -> dict[str, float | str]:
    """Return the scores of a run: the best checkpoint by validation loss, beam search on the test set."""
    trained = load(workdir, tell=print)
    split = partial(conversion.split, cfg=trained.cfg.model)  # as trained: direction and length of each kernel
    count = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(split, trained.params)))
    trained = precomputed(trained)
    text = parallel_text.read(dataclasses.replace(trained.cfg.data, dir=arguments.data), "test")
    sources = [np.asarray(ids) for ids in trained.vocabularies.src.encode(text.src)]
    search, rates, peaks = trained.cfg.search, [], []
    for index in range(arguments.repeats + 1):  # the first one compiles
        peak = product_rate()
        before = time.perf_counter()
        found = translate(trained.params, trained.models, search, sources)
        if index:
            rates.append(len(sources) / (time.perf_counter() - before))
            peaks.append(peak / 1e9)
    hypotheses = [trained.vocabularies.tgt.decode(one.best.tokens.tolist()) for one in found]
    scores = score(hypotheses, [text.tgt], bleu_tokenize=trained.cfg.training.bleu_tokenize)
    return {
        "parameters": count,
        "epochs": max(line["epoch"] for line in lines(workdir, "train")),
        "perplexity": min(line["perplexity"] for line in lines(workdir, "valid")),
        "bleu": scores["bleu"].value,
        "sentences/s": statistics.median(rates),
        "product": statistics.median(peaks),
        "metrics.jsonl": hashlib.sha256((workdir / "metrics.jsonl").read_bytes()).hexdigest(),
    }


def row(one: Kind, found: list[dict], speed: float, seconds: float) -> str:
    """Format a row of the table; training `speed` in tokens/s and `seconds` per epoch come from `speeds`."""
    middle = {name: statistics.median(run[name] for run in found) for name in ("sentences/s", "product")}
    epochs = "/".join(map(str, sorted({run["epochs"] for run in found})))
    return (
        f"| {one.name} | {found[0]['parameters'] / 1e6:.2f} M | {seconds:.0f} | {speed:.0f} | {epochs} "
        f"| {mean(found, 'perplexity')} | {mean(found, 'bleu')} "
        f"| {middle['sentences/s']:.0f} | {middle['product']:.0f} |"
    )


def mean(found: list[dict], name: str) -> str:
    """Format the mean over seeds, with the sample standard deviation if there are several."""
    values = [run[name] for run in found]
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


if __name__ == "__main__":
    run_script(main)
