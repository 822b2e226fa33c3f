"""Write a workdir with the average of several checkpoints of a run."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.places import resolved
from convs2s_jax.training.run import store_copy
from convs2s_jax.training.run.checkpoints import derived_workdir
from convs2s_jax.training.run.outputs import check_outside_runs
from convs2s_jax.training.run.programs import state_of
from convs2s_jax.translation import trained
from convs2s_jax.translation.trained import Steps


def write_average(workdir: str, output: str, steps: Steps, tell: Tell) -> None:
    """Write a workdir with the average of checkpoints, the same as decoding computes from these steps.

    Its training position is that of the newest checkpoint, with a list of all averaged steps. The optimiser state is
    that before the first update.

    Args:
      workdir: path or address of the run.
      output: path of the workdir to create.
      steps: as in `trained.restore`; empty for the best checkpoint alone.
      tell: receives messages for the user.

    Raises:
      UserError: there is no run in `workdir`, there are no such checkpoints, or `output` already exists or cannot be
        written.
    """
    check(
        resolved(workdir) != resolved(output),
        f"--output={output} is the folder of --workdir; choose a new folder; nothing was written",
    )
    check_outside_runs(output, "--output")
    with (
        store_copy.reading(workdir, tell) as (folder, told),
        derived_workdir.new("--output", output) as made,
    ):
        found = trained.restore(folder, steps, None, told)
        cfg = found.cfg
        state = jax.jit(partial(state_of, model=cfg.model, training=cfg.training))(found.params)
        newest = max(found.positions, key=lambda position: position["step"])
        state = dataclasses.replace(state, step=jnp.asarray(newest["step"], jnp.int32))
        position = {name: value for name, value in newest.items() if name != "digests"}
        origin = {"workdir": workdir, "steps": list(found.steps)}
        derived_workdir.write(made, cfg, found.vocabularies, state, position | {derived_workdir.AVERAGED: origin})
    what = "the average of steps" if len(found.steps) > 1 else "step"
    listed = ", ".join(map(str, found.steps))
    tell(f"{output}: {what} {listed} of {workdir}; decode with convs2s decode --workdir={output}")
