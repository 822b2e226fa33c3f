"""Train a model:  python train.py --config=configs/FILE.py --workdir=DIR [--config.path.to.field=value ...].

Running the same command again continues the run. SIGINT or SIGTERM saves and ends it. It uses all devices of a machine
(--config.mesh.data=1 uses one), and of several machines where each runs it: docs/distributed.md.
"""

import os
from pathlib import Path

from absl import flags

from convs2s_jax.core.command_line import read_config, run
from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import distributed, processes
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.processes import Processes

CONFIG = flags.DEFINE_string("config", "", "configuration file; --config.path.to.field=value overrides a field")
WORKDIR = flags.DEFINE_string("workdir", "", "folder for everything the run writes; an existing run is continued")
COORDINATOR = flags.DEFINE_string(
    "coordinator_address", None, "of several processes: host:port of process 0 (or JAX_COORDINATOR_ADDRESS)"
)
PROCESSES = flags.DEFINE_integer("num_processes", None, "how many processes there are (or JAX_NUM_PROCESSES)")
PROCESS = flags.DEFINE_integer("process_id", None, "which of them this is, from 0 (or JAX_PROCESS_ID)")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "find the other processes in what Slurm, Open MPI, Kubernetes or a TPU pod tell"
)
START = flags.DEFINE_integer("initialization_timeout", 300, "seconds to wait for the other processes to start")
HEARTBEAT = flags.DEFINE_integer("heartbeat_timeout", 100, "seconds after which a silent process counts as lost")


def main(overrides: list[tuple[str, str]]) -> None:
    """Read the configuration, find the other processes, and train."""
    for name, value in (("config", CONFIG.value), ("workdir", WORKDIR.value)):
        if not value:
            raise UserError(f"--{name} is missing: train.py --config=configs/cldr_en_de.py --workdir=runs/demo")
    cfg = build(Config, read_config(CONFIG.value, overrides))
    given = Processes(
        coordinator_address=COORDINATOR.value,
        num_processes=PROCESSES.value,
        process_id=PROCESS.value,
        distributed=DISTRIBUTED.value,
        initialization_timeout=START.value,
        heartbeat_timeout=HEARTBEAT.value,
    )
    processes.join(processes.from_environment(given, dict(os.environ)))
    distributed.guarded(lambda: train(cfg, Path(WORKDIR.value)))


if __name__ == "__main__":
    run(main, leave=distributed.leave)
