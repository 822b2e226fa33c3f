"""Time a command from start to end:  python benchmarks/start.py --workdir=DIR [--train=FLAGS] [FLAG ...]

`decode.py` translates one line with the model of the workdir, in a new process each time: first --repeats times with an
empty folder of compiled programs, then as often with the programs that are kept there. Further flags are passed to
`decode.py`.
With --train, such as "--config=configs/cldr_en_de.py --config.training.max_steps=2000", the same is measured for a
training that continues the run in the workdir, until the end of its first update. No checkpoint is saved.

Prints seconds of wall-clock time, minimum / median / maximum. The parts add up to the total.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe, positive, run_script, spread

ROOT = Path(__file__).parents[1]
PARTS = {
    "imports": "imports",
    "trace": "tracing and lowering",
    "compile": "compiling, or reading compiled programs",
    "load": "loading the model (training: and the data)",
    "run": "search (training: the update)",
    "rest": "starting and ending Python, the rest",
}
PROBE = """
import time; begun = time.perf_counter()
import json, os, sys
from convs2s_jax.commands import convs2s, {name}
import importlib, jax
seconds = dict.fromkeys({parts}, 0.0)
seconds["imports"] = time.perf_counter() - begun
where = ["rest"]
kinds = {{"jaxpr_trace_duration": "trace", "jaxpr_to_mlir_module_duration": "trace"}}
kinds["backend_compile_duration"] = "compile"
def note(event, passed, **_):
    kind = kinds.get(event.rpartition("/")[2])
    if kind:
        seconds[kind] += passed
        seconds[where[-1]] -= passed
jax.monitoring.register_event_duration_secs_listener(note)
def timed(place, part):
    module, _, function = place.rpartition(".")
    module = importlib.import_module(module)
    inner = getattr(module, function)
    def outer(*args, **kwargs):
        where.append(part)
        before = time.perf_counter()
        result = jax.block_until_ready(inner(*args, **kwargs))
        seconds[where.pop()] += time.perf_counter() - before
        if function == "update":
            print(json.dumps(seconds), file=sys.stderr, flush=True)
            os._exit(0)
        return result
    setattr(module, function, outer)
for function, part in {wrapped}.items(): timed(function, part)
convs2s.COMMANDS["{name}"].run({arguments})
print(json.dumps(seconds), file=sys.stderr)
"""
WRAPPED = {
    "decode": {
        "convs2s_jax.translation.jobs.job.load_translator": "load",
        "convs2s_jax.translation.jobs.job.translate": "run",
    },
    "train": {
        "convs2s_jax.training.run.loop.open_run": "load",
        "convs2s_jax.training.run.programs.update": "run",
    },
}


def main() -> None:
    """Measure and print a table for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--line", default="5 kilowatts", help="the line to translate")
    parser.add_argument("--train", help="flags of train.py that continue the run in the workdir")
    parser.add_argument("--repeats", type=positive, default=5)
    arguments, flags = parser.parse_known_args()
    print(describe())
    for what in (["-c", "pass"], ["-c", "import jax"], ["-c", "import convs2s_jax"], ["decode.py", "--help"]):
        times = [process(what, {})[0] for _ in range(arguments.repeats)]
        print(f"python {' '.join(what)}: {spread(times, 2)} s")
    with tempfile.TemporaryDirectory() as folder:
        line = Path(folder) / "line"
        line.write_text(arguments.line + "\n")
        commands = {"decode": [f"--workdir={arguments.workdir}", f"--input={line}", *flags]}
        if arguments.train is not None:
            commands["train"] = [f"--workdir={arguments.workdir}", *shlex.split(arguments.train)]
        for name, given in commands.items():
            table(name, given, Path(folder) / "programs", arguments.repeats)


def table(name: str, given: list[str], programs: Path, repeats: int) -> None:
    """Print the seconds of each part, with and without kept programs."""
    code = PROBE.format(
        name=name,
        parts=list(PARTS),
        wrapped=WRAPPED[name],
        arguments=[f"{name}.py", *given],
    )
    runs: dict[str, list[dict[str, float]]] = {"nothing kept": [], "programs kept": []}
    for kind, found in runs.items():
        for _ in range(repeats):
            if kind == "nothing kept":
                shutil.rmtree(programs, ignore_errors=True)
            variables = {"JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
            total, said = process(["-c", code], variables)
            seconds = json.loads(said.splitlines()[-1])
            seconds["rest"] = total - sum(value for part, value in seconds.items() if part != "rest")
            found.append(seconds | {"total": total})
    print(f"\n| {name}.py | {' | '.join(runs)} |\n|---|{'---|' * len(runs)}")
    for part, title in {"total": "total", **PARTS}.items():
        cells = [spread([seconds[part] for seconds in found], 2) for found in runs.values()]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def process(arguments: list[str], variables: dict[str, str]) -> tuple[float, str]:
    """Run a new Python process; return its seconds and what it wrote to standard error."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    before = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=known, capture_output=True, text=True, check=False
    )
    passed = time.perf_counter() - before
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return passed, ended.stderr


if __name__ == "__main__":
    run_script(main)
