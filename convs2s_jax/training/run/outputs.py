"""Outputs of commands: none may be one of the own files of a run."""

import os
from pathlib import Path

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import resolved, scheme_of
from convs2s_jax.training.run.run_folder import FILES, checkpoints


def check_outside_runs(name: str, flag: str) -> None:
    """Raise UserError if an output would be one of the own files of any run; other names in its folder are allowed.

    Args:
      name: path of the output; "" or "-" for none. Addresses in object stores are not checked.
      flag: the flag that specifies it, for messages.
    """
    if name in ("", "-") or scheme_of(name):
        return
    for output in {os.path.abspath(name), resolved(name)}:  # the folder of checkpoints may be a link to another disk
        for folder in Path(output).parents:
            own = Path(output).relative_to(folder).parts[0] in FILES
            if own and (folder / "config.json").is_file() and checkpoints(folder).is_dir():
                raise UserError(f"{flag}={name} belongs to the run in {folder}: choose another path")
