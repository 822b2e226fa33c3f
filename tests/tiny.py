"""The smallest run that has everything: phrases, vocabularies, a model that compiles in seconds."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from convs2s_jax.core.config import build, override
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.config import Config
from convs2s_jax.translation.translator import load

ROOT = Path(__file__).parents[1]

VALUES: dict[str, Any] = {
    "data": {
        "corpus": "cldr",
        "src": "en",
        "tgt": "de",
        "cldr": {"train": 300, "valid": 12, "test": 8},
        "vocabulary": {"src_size": 150, "tgt_size": 150, "split_digits": True},
        "batch": {"tokens": 1600, "shapes": 1},
    },
    "model": {
        "embedding_dim": 8,
        "dropout": 0.1,
        "encoder": {"layers": [[8, 3]], "max_positions": 64},
        "decoder": {"layers": [[8, 3]], "out_dim": 8, "max_positions": 64},
    },
    "training": {"validate_bleu": False, "report_every": 2, "max_steps": 8},
    "search": {"beam_size": 2},
    "mesh": {"data": 1},  # tests have eight devices, and programs for eight compile longer
}


def values(**overrides: Any) -> dict[str, Any]:
    """The configuration with `path__to__field=value` put in."""
    result = VALUES
    for path, value in overrides.items():
        result = override(result, path.replace("__", "."), repr(value))
    return result


def config(**overrides: Any) -> Config:
    return build(Config, values(**overrides))


def files(folder: Path, src: str = "in", tgt: str = "out") -> dict[str, str]:
    """Overrides of `config` for a corpus of files."""
    return {"data__corpus": "files", "data__src": src, "data__tgt": tgt, "data__dir": str(folder)}


def config_file(folder: Path, **overrides: Any) -> Path:
    """The configuration as a file for train.py."""
    path = folder / "tiny.py"
    path.write_text(f"def get_config():\n    return {values(**overrides)!r}\n")
    return path


def arrays(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """Every parameter of a checkpoint by path."""
    translator = load(workdir, steps=[step], tell=print)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(translator.params)
    }


def digests(workdir: Path, step: int) -> dict[str, Any]:
    """Digest of every array of a checkpoint, parameters and optimiser: equal only if all are bitwise equal."""
    return position_file.read(run_folder.finished(run_folder.checkpoints(workdir))[step])["digests"]


def metrics(workdir: Path) -> list[dict[str, Any]]:
    """The reports in metrics.jsonl, without their checksums."""
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "checksum"} for record in found]
