"""Whole commands on every mesh of eight devices, to their end: training with its scores, then decoding.

Tests of single programs did not notice that many programs in progress at once block XLA's CPU client; see
`training.dispatch`.
"""

import subprocess
import sys

import pytest

from tests import processes, tiny

LINES = 200
"""In the test split. They make over 100 batches; the programs of 32 may be in progress on a CPU device."""
TRANSLATION = {
    "search__beam_size": 1,
    "model__encoder__layers": [[8, 3]] * 4,  # 58 parameters, and as many programs that compute their digests
    "model__decoder__layers": [[8, 3]] * 3,
}
CLASSIFICATION = {
    "data__corpus": "cldr_kinds",
    "data__tgt": "",
    "model": {
        "kind": "classifier",
        "embedding_dim": 8,
        "features": {"kind": "pooled", "encoder": {"kind": "conv", "layers": [(8, 3)], "max_positions": 64}},
    },
}
TASKS = {"translation": (TRANSLATION, "bleu"), "classification": (CLASSIFICATION, "accuracy")}
RUN = {
    "data__cldr": {"train": 300, "valid": 20, "test": LINES},
    "data__batch__tokens": 60,
    "training__max_steps": 4,
    "training__validate_bleu": True,
}
SIZES = [(data, fsdp, 8 // data // fsdp) for data in (1, 2, 4, 8) for fsdp in (1, 2, 4, 8) if data * fsdp <= 8]
WAYS = [*(("jit", sizes) for sizes in SIZES), ("pmap", (8, 1, 1))]
FEW = [("jit", (2, 2, 2)), ("jit", (8, 1, 1)), ("jit", (1, 8, 1)), ("pmap", (8, 1, 1))]
CASES = [*(("translation", *way) for way in WAYS), *(("classification", *way) for way in FEW)]
PATIENCE = " --xla_cpu_collective_call_terminate_timeout_seconds=60"
"""Seconds after which XLA aborts a process whose devices wait for each other."""


def called(*arguments):
    known = processes.environment(8)
    known["XLA_FLAGS"] += PATIENCE
    return subprocess.run(
        [sys.executable, *arguments], cwd=tiny.ROOT, env=known, capture_output=True, text=True, timeout=processes.LIMIT
    )


@pytest.mark.drill
@pytest.mark.parametrize(("task", "way", "sizes"), CASES, ids=str)
def test_a_run_trains_and_scores_and_decodes_to_its_end(task, way, sizes, tmp_path, tally):
    options, metric = TASKS[task]
    mesh = {f"mesh__{axis}": size for axis, size in zip(("data", "fsdp", "tensor"), sizes, strict=True)}
    config = tiny.config_file(tmp_path, **RUN, **options, **mesh, parallel=way)
    workdir, output = tmp_path / "run", tmp_path / "output.txt"
    trained = called("train.py", f"--config={config}", f"--workdir={workdir}")
    assert trained.returncode == 0, trained.stderr
    assert f"{way} over " in trained.stderr
    scored = {line["split"]: line for line in tiny.metrics(workdir)}
    assert metric in scored["valid"]
    assert metric in scored["test"]
    decoded = called("decode.py", f"--workdir={workdir}", "--split=test", f"--output={output}")
    assert decoded.returncode == 0, decoded.stderr
    assert len(output.read_text().splitlines()) == LINES
    tally(tries=2)
