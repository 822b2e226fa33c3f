"""Plan an update on several numbers of chips and meshes, and draw the throughput of a chip over their number:

    python examples/scale_sweep.py

A loop over `convs2s scale plan --json` (pip install '.[plan]'). Each plan is a file, so a second start makes only those
that are missing.
"""

import json
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure

FLAGS = ("--config=paper_wmt14_en_de", "--config.model.dtype=bfloat16", "--tokens_per_chip=4096")
TOPOLOGIES = ("v5e:1x1", "v5e:4x4", "v5e:16x16")
MESHES = {"data": ("--config.mesh.data=-1",), "fsdp": ("--config.mesh.data=1", "--config.mesh.fsdp=-1")}


def plan(folder, topology, mesh, flags):
    """The plan of a case, from its file if there is one; None if the command refuses it."""
    path = folder / f"{topology.replace(':', '-')}-{mesh}.json"
    if not path.exists():
        command = ["scale", "plan", f"--topology={topology}", *flags, *MESHES[mesh], f"--json={path}"]
        subprocess.run([sys.executable, "-m", "convs2s_jax", *command], check=False)
    return json.loads(path.read_text()) if path.exists() else None


def main(folder="sweep", topologies=TOPOLOGIES, flags=FLAGS):
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    throughput = {mesh: {} for mesh in MESHES}
    for mesh, line in throughput.items():
        for topology in topologies:
            made = plan(folder, topology, mesh, flags)
            if made is not None and made["fits"] is not False:
                line[made["devices"]] = made["steps"][0]["tokens_per_second"] / made["devices"]
        axes.plot(*zip(*sorted(line.items()), strict=True), "o-", label=mesh)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="chips", ylabel="target tokens/s of a chip", ylim=(0, None))
    axes.legend()
    figure.savefig(folder / "sweep.png")
    return throughput


if __name__ == "__main__":
    main(*sys.argv[1:2])
