"""launch/slurm.sbatch with a stand-in for srun that starts real trainings, told of each other as Slurm tells tasks."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import processes, tiny
from tests.launch.standins import LAUNCH, StandIns
from tests.processes import children, saved

SRUN = """
export SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=1
pids=()
for i in 0 1; do
  SLURM_PROCID=$i SLURM_LOCALID=$i setsid "${@:3}" 2>>"$LOGS/$i" &
  pids+=($!)
done
# as Slurm signals a step: every process of every task
trap 'for pid in "${pids[@]}"; do kill -TERM -- "-$pid"; done' USR1
highest=0
for pid in "${pids[@]}"; do
  while :; do
    status=0
    wait "$pid" || status=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  ((status <= highest)) || highest=$status
done
exit $highest
"""


@pytest.mark.drill
def test_a_job_saves_before_its_limit_goes_on_when_it_is_requeued_and_ends(tmp_path, tally):
    """Twice the limit comes near; the third time one task is killed, and both start again within the job."""
    options = {"training__save_every": 1, "training__report_every": 1, "training__max_steps": 40, "mesh__data": -1}
    config, workdir = tiny.config_file(tmp_path, **options), tmp_path / "run"
    programs = StandIns(tmp_path)
    programs.add("srun", SRUN)
    programs.add("scontrol")
    known = {
        "CONFIG": str(config),
        "WORKDIR": str(workdir),
        "PYTHON": sys.executable,
        "LOGS": str(tmp_path),
        "PAUSE": "1",
    }
    known |= {"SLURM_JOB_ID": str(processes.free_port()), "SLURM_SUBMIT_DIR": str(tiny.ROOT)}

    def job(restarts):
        variables = programs.environment({**processes.environment(1), **known, "SLURM_RESTART_COUNT": str(restarts)})
        return subprocess.Popen([LAUNCH / "slurm.sbatch", "--heartbeat_timeout=20"], env=variables, cwd=tmp_path)

    for restarts in range(3):
        before = saved(workdir)
        running = job(restarts)
        try:
            deadline = time.monotonic() + processes.LIMIT
            while saved(workdir) < before + 3:
                assert running.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            [srun] = children(running.pid)
            if restarts < 2:
                os.kill(srun, signal.SIGUSR1)
                assert running.wait(processes.LIMIT) == 75
                assert programs.calls()[-1] == ["scontrol", "requeue", known["SLURM_JOB_ID"]]
            else:
                [training] = children(children(srun)[1])
                os.kill(training, signal.SIGKILL)
                assert running.wait(processes.LIMIT) == 0
        finally:
            processes.end(running.pid)
            running.wait()
    assert saved(workdir) == 40
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(1, 41))
    tally(tries=3)
