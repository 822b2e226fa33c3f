"""Exact match on SCAN:  python benchmarks/scan.py --data=DIR --workdir=runs/scan [--seeds 1 2 3]

DIR is a folder with one folder for each split of SCAN. Every configuration is trained on every split with every seed,
one after another. Finished runs are not trained again, and stopped runs continue. The script prints the score of every
run, and means and standard deviations over the seeds. Results are in docs/results.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from machine import describe, run_script

from convs2s_jax.core.errors import UserError

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Train missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder of the splits")
    parser.add_argument("--workdir", required=True, type=Path, help="folder for all runs")
    parser.add_argument("--splits", nargs="+", default=["simple", "addprim_jump", "around_right"])
    parser.add_argument("--configs", nargs="+", default=["convs2s", "gru"], help="names after configs/scan_")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parser.parse_args()
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    print(describe(), flush=True)
    found: dict[tuple[str, str], list[float]] = {}
    for seed in arguments.seeds:
        for split in arguments.splits:
            for name in arguments.configs:
                score = exact_match(name, arguments.data / split, seed, arguments.workdir / f"{name}.{split}.{seed}")
                print(f"{name} {split} seed {seed}: {score:.2f} %", flush=True)
                found.setdefault((split, name), []).append(score)
    print("\n| split | " + " | ".join(arguments.configs) + " |\n|---|" + "---|" * len(arguments.configs))
    for split in arguments.splits:
        print(f"| {split} | " + " | ".join(cell(found[split, name]) for name in arguments.configs) + " |")


def exact_match(name: str, data: Path, seed: int, workdir: Path) -> float:
    """Train, and return the percentage of test commands whose actions are all correct."""
    command = [sys.executable, str(ROOT / "train.py"), f"--config={ROOT / 'configs' / f'scan_{name}.py'}"]
    command += [f"--config.data.dir={data}", f"--config.seed={seed}", f"--workdir={workdir}"]
    with (workdir.parent / f"{workdir.name}.log").open("w") as log:
        status = subprocess.run(command, stdout=log, stderr=log).returncode
    if status:
        raise UserError(f"train.py ended with status {status}: see {workdir.parent / workdir.name}.log")
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == "test"][-1]["exact_match"]


def cell(scores: list[float]) -> str:
    """Format a table cell: the mean, the standard deviation of several scores, and each score."""
    spread = f" +- {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.1f}{spread} ({', '.join(f'{score:.1f}' for score in scores)})"


if __name__ == "__main__":
    run_script(main)
