"""Export a trained model as StableHLO programs, with its parameters, vocabularies and a runtime."""

import hashlib
import importlib.metadata
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from safetensors.numpy import save

from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.files import new_folder, writing
from convs2s_jax.interop.orders import ProgramExport
from convs2s_jax.interop.programs import runtime
from convs2s_jax.models import conversion
from convs2s_jax.nn.trees import paths
from convs2s_jax.search.batching import max_output_length, widths_up_to
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.generate import generate
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.translation import translator
from convs2s_jax.translation.jobs.options import plain_search
from convs2s_jax.translation.translator import Translator

ROWS = (1, 8, 64)
"""Batch sizes for which a program is exported."""
RUNTIME, MANIFEST, PARAMETERS, PRECOMPUTE = "translate.py", "manifest.json", "parameters.safetensors", "precompute.bin"
NEEDS = ("flatbuffers >= 24.3", "numpy >= 2.0", "safetensors >= 0.4", "sentencepiece >= 0.2.2")
"""Packages that the runtime requires, with those of setup.cfg. jax is added: an older one may not read the programs."""


def export_programs(order: ProgramExport, changes: Mapping[str, Any], tell: Tell) -> None:
    """Export a model to a new folder. On an error, no folder is created.

    Args:
      order: what to export.
      changes: search options that override those of the run.
      tell: called with messages for the user.

    Raises:
      UserError: the output already exists, or the model cannot be exported.
    """
    output = Path(order.output)
    check(not output.exists(), f"--output={output} already exists; choose another folder or delete it")
    model = translator.load(order.workdir, steps=order.checkpoint, tell=tell, given_as="--workdir")
    search, rules = plain_search(model, order.workdir, changes, "an export"), model.cfg.data.normalize
    check(
        set(rules) <= {"nfkc"},
        f"--workdir={order.workdir}: data.normalize is {', '.join(rules)}, of which an export can only do nfkc; train "
        "with nfkc alone, or normalise the text before it is trained on and translated",
    )
    with writing(f"--output={output}", "choose another folder"), new_folder(output) as folder:
        manifest = _written(folder, model, search, order)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.iterdir())
        folder.rename(output)
    tell(f"{output}: {len(manifest['programs'])} programs, {size / 1e6:.1f} MB in total")


def _written(folder: Path, model: Translator, search: SearchConfig, order: ProgramExport) -> dict[str, Any]:
    """Write all files except the manifest, and return the manifest."""
    [cfg] = model.members
    names = paths(model.params)
    leaves, tree = jax.tree.flatten(model.params)
    arrays = save({name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)})
    (folder / PARAMETERS).write_bytes(arrays)  # its own error on a full disk is not an OSError
    vocabulary = []
    for side, one in (("src", model.vocabularies.src), ("tgt", model.vocabularies.tgt)):
        one.save(folder / f"{side}{one.suffix}")
        vocabulary.append({"file": f"{side}{one.suffix}", "kind": one.suffix})
    fast = cfg.decoder.functions.precompute is not None

    def prepared(leaves: list[Any]) -> Any:
        params = jax.tree.unflatten(tree, leaves)
        return conversion.precompute(params, cfg) if fast else params

    ready = jax.eval_shape(prepared, leaves)
    ready_tree = jax.tree.structure(ready)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.tree.leaves(ready)]

    def translate(leaves: list[Any], src: Any, max_lengths: Any) -> Any:
        found, _ = generate(
            (jax.tree.unflatten(ready_tree, leaves),),
            (cfg,),
            search_options(search),
            src,
            request(max_lengths),
            limit=max_output_length((cfg,), search, src.shape[1]) + 1,
        )
        return found.tokens, found.scores, found.lengths

    def write(name: str, function: Any, *arguments: Any) -> None:
        settings: Any = jax.config
        before = settings.jax_traceback_in_locations_limit
        settings.update("jax_traceback_in_locations_limit", 0)  # without source locations, all machines export the same
        try:
            made = export.export(jax.jit(function), platforms=list(order.platforms))(*arguments)
        finally:
            settings.update("jax_traceback_in_locations_limit", before)
        (folder / name).write_bytes(made.serialize())

    if fast:
        write(PRECOMPUTE, lambda leaves: jax.tree.leaves(prepared(leaves)), leaves)
    programs = []
    for width in widths_up_to(min(order.max_tokens, cfg.max_source)):
        for rows in ROWS:
            name = f"translate-{rows}x{width}.bin"
            sizes = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((rows, width), (rows,)))
            write(name, translate, shapes, *sizes)
            programs.append({"rows": rows, "width": width, "file": name})
    (folder / RUNTIME).write_text(_program(), encoding="utf-8")
    needs = ((need, importlib.metadata.version(need.split()[0])) for need in (f"jax >= {jax.__version__}", *NEEDS))
    lines = (f"{need}  # {version} when exported\n" for need, version in needs)
    (folder / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    return {
        "made_by": {name: importlib.metadata.version(name) for name in ("convs2s_jax", "jax")},
        "platforms": list(order.platforms),
        "languages": {"source": model.cfg.data.src, "target": model.cfg.data.tgt},
        "checkpoints": list(model.steps[0]),
        "max_source": cfg.max_source,
        "max_target": cfg.max_target,
        "search": to_dict(search),
        "vocabulary": vocabulary,
        "nfkc": bool(model.cfg.data.normalize),
        "parameters": {"file": PARAMETERS, "order": names},
        "precompute": PRECOMPUTE if fast else None,
        "programs": programs,
        "files": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.iterdir())
            if path.name not in (RUNTIME, "requirements.txt")
        },
    }


def _program() -> str:
    """Return the source of the runtime, with definitions in place of imports from this package."""

    def defined(imported: re.Match[str]) -> str:
        values = {name: getattr(runtime, name) for name in imported[1].split(", ")}
        return "\n".join(inspect.getsource(x) if callable(x) else f"{name} = {x!r}" for name, x in values.items())

    return re.sub(
        r"^from convs2s_jax\..* import ([\w, ]*\w).*$", defined, inspect.getsource(runtime), flags=re.MULTILINE
    )
