"""Show what each flag of `--xla_flags=tpu` changes in the compiled update, by plans with only this flag on or off.

  python benchmarks/xla_flags.py [--topology=v5e:4x4]

This requires the extra `plan`, but no TPU. GPU flags need a GPU's compiler and are not included. A plan does not
simulate the order of operations, so flags that only change this order have no visible effect here.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import run_script

from convs2s_jax.core import platforms

MODEL = (
    "--config=fairseq_fconv_iwslt_de_en",
    "--config.model.dtype=bfloat16",
    "--tokens_per_chip=4096",
    "--config.model.encoder.layers=[(256, 3)] * 3",
    "--config.model.decoder.layers=[(256, 3)] * 3",
)
MESHES = {"data 16": (), "fsdp 16": ("--config.mesh.data=1", "--config.mesh.fsdp=16")}
VARIABLE, KNOWN = platforms.SETS["tpu"]


def planned(topology, mesh, values):
    """Plan with these flags in a separate process, since libtpu reads them once; return MB, counts and milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        command = [Path(sys.executable).with_name("convs2s"), "scale", "plan", f"--topology={topology}"]
        ended = subprocess.run(
            [*command, *MODEL, *mesh, f"--json={path}"],
            env={**os.environ, VARIABLE: values},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            sys.exit(ended.stderr)
        plan = json.loads(path.read_text())
    exchanges = [each for program in plan["programs"] for each in program["collectives"]]
    return {
        "asynchronous": sum(each["times"] for each in exchanges if each["asynchronous"]),
        "synchronous": sum(each["times"] for each in exchanges if not each["asynchronous"]),
        "sent MB": sum(each["wire"] for each in exchanges) / 1e6,
        "asynchronous MB": sum(each["wire"] for each in exchanges if each["asynchronous"]) / 1e6,
        "peak MB": plan["resident"] / 1e6,
        "bound ms": 1e3 * plan["steps"][0]["seconds"],
    }


def main() -> None:
    """Plan all cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default="v5e:4x4", help="devices of the plans: 16 chips")
    topology = parser.parse_args().topology
    on = [f"--{flag}" for flag in KNOWN]
    cases = {"none": "", **{flag: flag for flag in on}, "all": " ".join(on)}
    cases |= {flag: flag for flag in (f"--{one.partition('=')[0]}=false" for one in KNOWN)}
    for where, mesh in MESHES.items():
        for name, values in cases.items():
            found = planned(topology, mesh, values)
            print(f"{where:8} {name:66}", *(f"{key} {value:.2f}" for key, value in found.items()), sep="  ", flush=True)


if __name__ == "__main__":
    run_script(main)
