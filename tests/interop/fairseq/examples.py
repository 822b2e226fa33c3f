"""Small checkpoints of fairseq made from golden cases, and what a workdir holds."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.data import vocabulary
from convs2s_jax.interop.fairseq.exporting import export_checkpoint
from convs2s_jax.interop.fairseq.importing import import_checkpoint
from convs2s_jax.interop.orders import FairseqExport, FairseqImport
from convs2s_jax.models import encoder_decoder
from convs2s_jax.nn import weight_norm
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import restoring
from convs2s_jax.training.run.programs import abstract_state
from convs2s_jax.training.step import TrainState
from tests import golden
from tests.helpers import array

NAME = "fconv_07_even_kernels"
UPDATES, EPOCH, RATE = 40, 3, 0.25
TRAINING = {
    "arch": "fconv",
    "source_lang": "de",
    "target_lang": "en",
    "lr": [0.25],
    "lr_scheduler": "fixed",
    "lr_shrink": 0.1,
    "force_anneal": None,
    "optimizer": "nag",
    "momentum": 0.99,
    "weight_decay": 0.0,
    "clip_norm": 0.1,
    "criterion": "cross_entropy",
    "max_tokens": 200,
    "update_freq": [1],
    "seed": 1,
}


def case(name: str = NAME) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, np.ndarray]]:
    """Arrays of a golden case, fairseq's arguments, its state dict."""
    arrays, info = golden.load(name)
    tensors = {key.removeprefix("param/"): value for key, value in arrays.items() if key.startswith("param/")}
    return arrays, {**info["config"], **TRAINING}, tensors


def parameters(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What an optimiser of fairseq holds a buffer for: no version, a tied table once."""
    tied = "decoder.fc3.weight" in tensors
    return {k: v for k, v in tensors.items() if k != "decoder.version" and not (tied and k == "decoder.fc3.weight")}


def buffers(tensors: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Momentum, each number its own."""
    random = np.random.default_rng(5)
    return [0.01 * random.normal(size=value.shape).astype(np.float32) for value in parameters(tensors).values()]


def content(tensors, args, momentum=None, *, rate=RATE) -> dict[str, Any]:
    """The dictionary that fairseq saves, with arrays in place of tensors."""
    group = {"lr": rate, "lr_old": rate, "momentum": 0.99, "weight_decay": 0.0}
    state = None
    if momentum is not None:
        state = {
            "state": {i: {"momentum_buffer": b} for i, b in enumerate(momentum)},
            "param_groups": [{**group, "params": list(range(len(momentum)))}],
        }
    history = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqNAG", "num_updates": UPDATES}
    return {
        "args": args,
        "model": tensors,
        "optimizer_history": [{**history, "lr_scheduler_state": {"lr": rate}}],
        "extra_state": {"train_iterator": {"version": 2, "epoch": EPOCH, "iterations_in_epoch": 0, "shuffle": True}},
        "last_optimizer_state": state,
    }


def whole() -> dict[str, Any]:
    """The content of a checkpoint with momentum."""
    _, args, tensors = case()
    return content(tensors, args, buffers(tensors))


def saved(values: Any) -> Any:
    """Values with tensors in place of arrays. The test is skipped without torch."""
    if isinstance(values, np.ndarray):
        return pytest.importorskip("torch").tensor(values)
    if type(values) is dict:
        return {name: saved(value) for name, value in values.items()}
    return values


def save(folder: Path, values: dict[str, Any], name: str = "checkpoint.pt", **options: Any) -> Path:
    """A file of fairseq, with dictionaries of the right size beside it."""
    torch = pytest.importorskip("torch")
    args = argparse.Namespace(**values["args"]) if isinstance(values["args"], dict) else values["args"]
    torch.save(saved(values | {"args": args}), folder / name, **options)
    for side, language in (("encoder", "de"), ("decoder", "en")):
        table = values["model"].get(f"{side}.embed_tokens.weight")
        write_dictionary(folder, language, 9 if table is None else len(table))
    return folder / name


def write_dictionary(folder: Path, language: str, size: int) -> None:
    (folder / f"dict.{language}.txt").write_text("".join(f"{language}{i} {i + 1}\n" for i in range(size - 4)))


def bring_in(file: Path, place: Path | str, **options: Any) -> list[str]:
    """Import a checkpoint; returns what the user was told."""
    told: list[str] = []
    overrides = options.pop("overrides", [])
    given = {"checkpoint": str(file), "workdir": str(place), "dicts": str(file.parent), **options}
    import_checkpoint(FairseqImport(**given), overrides, told.append)
    return told


def take_out(workdir: Path, output: Path, **options: Any) -> list[str]:
    """Export a checkpoint; returns what the user was told."""
    told: list[str] = []
    output.parent.mkdir(exist_ok=True)
    export_checkpoint(FairseqExport(workdir=str(workdir), output=str(output), **options), told.append)
    return told


def held(workdir: Path):
    """Configuration, vocabularies, state and position of a workdir's only checkpoint."""
    cfg, vocabularies = run_folder.load_config(workdir), vocabulary.load(run_folder.vocabulary(workdir))
    sizes = {"source": vocabularies.src.size, "target": vocabularies.tgt.size}
    abstract = abstract_state(cfg.model, cfg.training, **sizes)
    check = partial(run_folder.check_vocabularies, workdir, vocabularies)
    items = {"params": abstract.params, "optimizer": abstract.optimizer}
    found, position = restoring.restore_items(
        run_folder.checkpoints(workdir), items, step=None, metric="loss", check=check, tell=print
    )
    state = TrainState(params=found["params"], optimizer=found["optimizer"], step=array(position["step"], jnp.int32))
    return cfg, vocabularies, state, position


def logits(workdir: Path, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """What the model of a workdir makes of a golden batch."""
    cfg, _, state, _ = held(workdir)
    src, previous = (jnp.asarray(arrays[f"in/{name}"]) for name in ("src_tokens", "prev_output_tokens"))

    @jax.jit
    def run(params):
        merged = weight_norm.merge(params)
        memory = encoder_decoder.encode(merged, cfg.model, src)
        cache = encoder_decoder.init_cache(merged, cfg.model, memory, len(src))
        return encoder_decoder.decode(merged, cfg.model, memory, cache, previous)[0]

    return np.asarray(run(state.params))
