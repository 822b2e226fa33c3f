"""`convs2s config`: list and print configurations."""

import ast
import json
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.shared import read_config
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.errors import counted

ABOUT = """
Print configurations:

  {program} [--config=NAME [--source | --shardings=DEVICES] [--config.path.to.field=value ...]]

Without flags, it lists the configurations that come with the package. `convs2s train --help=config` describes every
field.
"""


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """The flags of `convs2s config`.

    Attributes:
      config: name, path or address of a configuration to print as JSON with every field, as a run writes it into its
        workdir.
      source: print the configuration's Python file instead, to save and edit.
      shardings: number of devices, which need not be attached: print how each parameter is sharded over them under the
        configuration's mesh, and by which rule.
    """

    config: str = ""
    source: bool = False
    shardings: int | None = None

    def __post_init__(self) -> None:
        check(self.shardings is None or self.shardings >= 1, f"--shardings={self.shardings}: use 1 or more devices")
        for name in ("source", "shardings"):
            check(not getattr(self, name) or self.config != "", f"--{name} without --config: add --config=NAME")
        check(
            not (self.source and self.shardings),
            "--source with --shardings: they print different things; remove one of them",
        )


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Print what the flags request."""
    options = command_line.options_of(ConfigOptions, values)
    if overrides:
        field = f"--config.{overrides[0][0]}"
        check(options.config != "", f"{field}: there is no configuration to change; add --config=NAME")
        check(not options.source, f"{field} with --source: the file is printed unchanged; remove one of them")
    print(_shown(options, overrides), end="")  # noqa: T201


def _shown(options: ConfigOptions, overrides: Overrides) -> str:
    if options.source:
        return command_line.config_text(options.config)
    if options.config:
        cfg = read_config(options.config, overrides)
        if options.shardings:
            return shardings(cfg, options.shardings)
        return json.dumps(to_dict(cfg), indent=2) + "\n"
    return "".join(f"{name:30} {_subject(name)}\n" for name in command_line.config_names())


def shardings(cfg: Any, devices: int) -> str:
    """Return a table of how each parameter is sharded over this number of devices.

    Args:
      cfg: a `training.run.config.Config`.
      devices: their number.

    Raises:
      UserError: the mesh does not fit this number, or its rules do not fit the model.
    """
    import jax

    from convs2s_jax.nn.trees import path_of
    from convs2s_jax.scaling.tables import table
    from convs2s_jax.training import mesh as meshes
    from convs2s_jax.training import sharding
    from convs2s_jax.training.run.programs import abstract_state, check_rules, placed, vocabulary_sizes

    mesh = jax.sharding.AbstractMesh(meshes.shape(cfg.mesh, devices), meshes.AXES)
    check_rules(cfg)
    state = abstract_state(cfg.model, cfg.training, **vocabulary_sizes(cfg))
    state = placed(state, sharding.shardings(state, mesh, cfg.parallel, rules=cfg.mesh.rules))
    equal = Counter[tuple[Any, ...]]()  # parameters of equal layers
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        name, (here, _) = path_of(path), sharding.stored_bytes(leaf)
        along = ", ".join(axis if axis and mesh.shape[axis] > 1 else "-" for axis in leaf.sharding.spec)
        rule = sharding.rule_of(name, cfg.mesh.rules)
        equal[re.sub(r"/\d+/", "/*/", name), leaf.shape, along, here, rule.path if rule else ""] += 1
    head = ["parameter", "number", "shape", "sharded along", "per device", "rule"]
    cells = [
        [name, str(number), str(list(shape)), along, sharding.size_text(number * here), rule]
        for (name, shape, along, here, rule), number in equal.items()
    ]
    sums = []
    for name, tree in (("parameters", state.params), ("with the optimiser's state", state)):
        stored, whole = map(sharding.size_text, sharding.stored_bytes(tree))
        sums.append(f"{name}: {stored} per device of {whole} in total")
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    title = f"{counted(devices, 'device')} as {axes}; {cfg.parallel}"
    if cfg.classifies:
        title += "; assuming 2 labels, because their number is known only from the training text"
    return "\n".join([title, "", *table(head, cells), "", *sums, ""])


def _subject(name: str) -> str:
    """Return the beginning of the first sentence of a configuration file's docstring, after its command."""
    head = ast.get_docstring(ast.parse(command_line.config_text(name))) or ""
    _, _, rest = head.partition("\n\n")
    sentence = re.split(r"\.(?: (?=[A-Z])|$)", " ".join(rest.split()))[0]
    return textwrap.shorten(sentence, 100, placeholder=" ...")


COMMAND = Command(about=ABOUT, groups=(Group("Options", ConfigOptions),), main=main, stores=("config",))
