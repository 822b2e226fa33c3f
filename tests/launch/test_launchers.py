"""The scripts of launch/: what they call of gcloud, xpk, kubectl and Slurm, and what a JobSet says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.launch.standins import LAUNCH, StandIns
from tests.tiny import ROOT

SCRIPTS = [*sorted(LAUNCH.glob("*.sh")), LAUNCH / "slurm.sbatch"]
CONFIG, WORKDIR, FLAG = "configs/paper_wmt14_en_de.py", "/shared/runs/a", "--config.mesh.fsdp=16"
TRAINING = ["train.py", f"--config={CONFIG}", f"--workdir={WORKDIR}"]
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)


@pytest.fixture
def programs(tmp_path):
    return StandIns(tmp_path)


@every_script
def test_a_script_stops_at_errors_and_bash_and_shellcheck_understand_it(script):
    assert "\nset -euo pipefail\n" in script.read_text()
    assert script.stat().st_mode & 0o111 == 0o111
    subprocess.run(["bash", "-n", script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:/usr/bin")
    if shellcheck is not None:
        found = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
        assert found.stdout == ""


@pytest.mark.parametrize(
    ("script", "arguments", "variables", "sentence"),
    [
        ("gcloud_tpu.sh", ["create"], {}, "set a zone, as in ZONE=us-west4-a"),
        ("gcloud_tpu.sh", ["begin"], {"ZONE": "z"}, "unknown action 'begin'; use create, install, run, log, "),
        ("xpk.sh", ["create", CONFIG, WORKDIR], {}, "set the cluster, as in CLUSTER=my-cluster"),
        ("xpk.sh", ["create", CONFIG, WORKDIR], {"CLUSTER": "c"}, "set the image, as in IMAGE="),
        ("xpk.sh", [], {"CLUSTER": "c"}, "unknown action ''; use create, list or delete"),
        ("jobset.sh", ["cpu", "create"], {}, "unknown kind of devices 'cpu'; use tpu or gpu"),
        ("jobset.sh", ["tpu", "create", CONFIG, WORKDIR], {}, "set the image, as in IMAGE="),
        ("jobset.sh", ["gpu", "show", CONFIG], {}, "show CONFIG WORKDIR"),
        ("jobset.sh", ["gpu", "start"], {}, "unknown action 'start'; use create, show, log or delete"),
        ("slurm.sbatch", [], {}, "set a configuration, as in CONFIG=configs/paper_wmt14_en_de.py"),
        ("slurm.sbatch", [], {"CONFIG": CONFIG}, "set a folder on a file system that all machines share"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_called(programs, script, arguments, variables, sentence):
    for name in ("gcloud", "xpk", "kubectl", "srun", "scontrol"):
        programs.add(name)
    found = programs.call(script, *arguments, **variables)
    assert found.returncode in (1, 2)
    assert sentence in found.stderr
    assert programs.calls() == []


def test_gcloud_requests_a_slice_waits_and_gives_it_back(programs):
    programs.add(
        "gcloud",
        '[[ $* != *describe* ]] || { echo >>"$0.n"; (($(wc -l <"$0.n") < 3)) && echo PROVISIONING || echo ACTIVE; }',
    )
    assert programs.call("gcloud_tpu.sh", "create", ZONE="z", WAIT="0").returncode == 0
    assert programs.call("gcloud_tpu.sh", "delete", ZONE="z").returncode == 0
    tpus, name = ["gcloud", "compute", "tpus"], "convs2s"
    slice_ = ["--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"]
    describe = [*tpus, "queued-resources", "describe", name, "--format=value(state.state)", "--zone=z"]
    assert programs.calls() == [
        [*tpus, "queued-resources", "create", name, f"--node-id={name}", *slice_, "--zone=z"],
        *[describe] * 3,
        [*tpus, "queued-resources", "delete", name, "--force", "--quiet", "--zone=z"],
    ]


def test_gcloud_runs_logs_and_stops_on_the_workers(programs, tmp_path):
    """The stand-in runs what it is told on a worker, in the worker's home folder."""
    home, ready = tmp_path / "home", tmp_path / "ready"
    worker = home / "convs2s_jax"
    (worker / "launch").mkdir(parents=True)
    (worker / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(LAUNCH / "run.sh", worker / "launch")
    programs.add(
        "gcloud", 'for a in "$@"; do [[ $a != --command=* ]] || (cd "$HOME" && bash -c "${a#--command=}"); done'
    )
    waits = f"""trap 'echo saved; exit 0' TERM; echo "$JAX_COMPILATION_CACHE_DIR"; echo >{ready}
while sleep 0.1; do :; done"""
    programs.add("python", waits)
    shutil.move(programs.folder / "python", worker / ".venv" / "bin" / "python")
    known = {"ZONE": "z", "HOME": str(home), "METADATA": "", "JAX_COMPILATION_CACHE_DIR": ""}
    assert programs.call("gcloud_tpu.sh", "run", CONFIG, "/a b", FLAG, **known).returncode == 0
    subprocess.run(
        ["bash", "-c", f"for i in {{1..300}}; do [[ ! -e {ready} ]] || exit 0; sleep 0.1; done; exit 1"], check=True
    )
    training = ["python", "train.py", f"--config={CONFIG}", "--workdir=/a b", "--distributed", FLAG]
    assert training in programs.calls()
    assert "running" in programs.call("gcloud_tpu.sh", "log", **known).stdout
    again = programs.call("gcloud_tpu.sh", "run", CONFIG, "/a b", FLAG, **known)  # the stand-in returns no status
    assert "training is already running here; stop it first" in again.stderr
    assert programs.call("gcloud_tpu.sh", "stop", **known).returncode == 0
    pid = (home / "convs2s_jax.pid").read_text().strip()
    subprocess.run(
        ["bash", "-c", f"for i in {{1..100}}; do kill -0 {pid} || exit 0; sleep 0.1; done; exit 1"], check=True
    )
    assert (home / "convs2s_jax.log").read_text() == "/a b/cache/compiled\nsaved\n"
    assert "exited" in programs.call("gcloud_tpu.sh", "log", **known).stdout
    assert all("--worker=all" in call or "--worker=0" in call for call in programs.calls() if call[0] == "gcloud")


def test_xpk_restarts_on_75(programs):
    programs.add("xpk")
    known = {"CLUSTER": "c", "IMAGE": "registry.example/convs2s:1"}
    assert programs.call("xpk.sh", "create", CONFIG, WORKDIR, FLAG, **known).returncode == 0
    [call] = programs.calls()
    assert call[:3] == ["xpk", "workload", "create"]
    options = dict(argument.split("=", 1) for argument in call[3:] if not argument.startswith("--env="))
    assert options == {
        "--cluster": "c",
        "--workload": "convs2s",
        "--tpu-type": "v5litepod-16",
        "--num-slices": "1",
        "--docker-image": "registry.example/convs2s:1",
        "--max-restarts": "100",
        "--restart-on-exit-codes": "75",
        "--termination-grace-period-seconds": "120",
        "--command": f"launch/run.sh python {' '.join(TRAINING)} --distributed {FLAG}",
    }
    assert {"--env=RETRIES=0", f"--env=JAX_COMPILATION_CACHE_DIR={WORKDIR}/cache/compiled"} <= set(call)


@pytest.mark.parametrize(("kind", "chips"), [("tpu", "google.com/tpu"), ("gpu", "nvidia.com/gpu")])
def test_a_jobset_has_the_fields_of_its_api(programs, kind, chips, tmp_path):
    """Names and values as the documentation of JobSet (v1alpha2) and of Kubernetes' Jobs and Pods has them."""
    programs.add("kubectl", f"cat >{tmp_path}/applied.yaml")
    odd = "--config.data.src=it's #1: {x}"
    found = programs.call(
        "jobset.sh", kind, "create", CONFIG, WORKDIR, FLAG, odd, IMAGE="registry.example/a&b:1", NAME="run-1"
    )
    assert (found.returncode, programs.calls()) == (0, [["kubectl", "apply", "-f", "-"]]), found.stderr
    jobset = yaml.safe_load((tmp_path / "applied.yaml").read_text())
    assert (jobset["apiVersion"], jobset["kind"], jobset["metadata"]["name"]) == (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "run-1",
    )
    spec = jobset["spec"]
    assert spec["failurePolicy"] == {
        "maxRestarts": 100,
        "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }
    [workers] = spec["replicatedJobs"]
    job = workers["template"]["spec"]
    assert (workers["name"], workers["replicas"], job["parallelism"], job["completions"]) == ("workers", 1, 4, 4)
    assert job["backoffLimit"] == 0
    lost, read = job["podFailurePolicy"]["rules"]
    assert lost == {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert read == {"action": "FailJob", "onExitCodes": {"containerName": "train", "operator": "NotIn", "values": [75]}}
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy asks for it
    assert pod["terminationGracePeriodSeconds"] > 30
    [train] = pod["containers"]
    assert train["name"] == read["onExitCodes"]["containerName"]
    assert train["image"] == "registry.example/a&b:1"
    assert train["resources"] == {"limits": {chips: 4}}
    assert [mount["name"] for mount in train["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
    joins = ["--distributed"] if kind == "tpu" else []
    assert f"WORKDIR {Path(train['command'][0]).parents[1]}\n" in (LAUNCH / "Dockerfile").read_text()
    assert [*train["command"], *train["args"]] == ["/app/launch/run.sh", "python", *TRAINING, *joins, FLAG, odd]
    known = {variable["name"]: variable.get("value") for variable in train["env"]}
    assert known["RETRIES"] == "0"
    if kind == "gpu":
        assert spec["network"] == {"enableDNSHostnames": True}
        # the host name of the first pod, as JobSet makes it
        assert known["JAX_COORDINATOR_ADDRESS"] == f"run-1-{workers['name']}-0-0.run-1:1234"
        assert known["JAX_NUM_PROCESSES"] == "4"
        assert job["completionMode"] == "Indexed"


@pytest.mark.parametrize(
    ("status", "restarts", "again"), [(0, "", False), (75, "", True), (75, "100", False), (2, "", False)]
)
def test_slurm_puts_a_job_into_the_queue_again_after_75_alone(programs, tmp_path, status, restarts, again):
    programs.add("srun", f"env >{tmp_path}/known; exit {status}")
    programs.add("scontrol")
    ours = {"PYTHON": "", "JAX_COMPILATION_CACHE_DIR": ""}  # `make test PYTHON=...` hands its variables on
    known = {"CONFIG": CONFIG, "WORKDIR": WORKDIR, "SLURM_JOB_ID": "7", **ours}
    if restarts:
        known["SLURM_RESTART_COUNT"] = restarts
    found = programs.call("slurm.sbatch", FLAG, **known)
    assert found.returncode == status, found.stderr
    srun = ["srun", "--kill-on-bad-exit=0", "--cpus-per-task=8", "launch/run.sh"]
    assert programs.calls() == [
        [*srun, "python", *TRAINING, "--distributed", FLAG],
        *[["scontrol", "requeue", "7"]] * again,
    ]
    told = (tmp_path / "known").read_text().splitlines()
    assert "PASS_SIGNALS=no" in told
    assert f"JAX_COMPILATION_CACHE_DIR={WORKDIR}/cache/compiled" in told


def test_the_image_has_what_it_names_and_runs_as_a_user():
    text = (LAUNCH / "Dockerfile").read_text()
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    allowed = {
        line[1:] for line in (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    assert {"setup.cfg", "setup.py", "pyproject.toml", "LICENSE"} <= copied  # what an installation reads
    assert re.search(r"^USER train$", text, re.MULTILINE)
    assert "--uid 1000" in text
    for name in ("jobset_tpu.yaml", "jobset_gpu.yaml"):
        assert "fsGroup: 1000" in (LAUNCH / name).read_text()
