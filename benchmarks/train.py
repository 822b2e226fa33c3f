"""Training throughput:  python benchmarks/train.py --data=DIR

DIR is a folder with train.de and train.en, plain or gzipped. Batches come from the batch plan at 4000 tokens and are
placed on the device first. Target tokens are counted without padding. On a shared machine, compare fractions of the
matrix-product rate rather than seconds. Results are in docs/performance.md.
"""

import argparse
import tempfile
from pathlib import Path

from machine import decoder_flops, describe, encoder_flops, peak_memory, positive, product_rate, run_script, spread
from updates import MULTI30K, compiled

from convs2s_jax.commands.shared import read_config
from convs2s_jax.core.platforms import keep_freed_memory
from convs2s_jax.training.run.prepare import prepare

CONFIG = Path(__file__).parents[1] / "configs" / "fairseq_fconv_iwslt_de_en.py"


def main() -> None:
    """Run the measurements and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with train.de and train.en")
    parser.add_argument("--config", default=str(CONFIG))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=positive, default=48, help="updates of one repeat")
    parser.add_argument("--repeats", type=positive, default=3)
    arguments = parser.parse_args()
    keep_freed_memory()  # as the command `train` does

    overrides = {"data.dir": arguments.data, **MULTI30K, "model.dtype": arguments.dtype}
    cfg = read_config(arguments.config, list(overrides.items()))
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        run = prepare(cfg, Path(folder), print)
        updates = compiled(cfg, run, arguments.steps)
    arithmetic = 3 * (
        updates.sources * encoder_flops(cfg.model)
        + updates.targets * decoder_flops(cfg.model, updates.sources / updates.pairs, run.vocabularies.tgt.size)
    )
    rates, shares = [], []
    for repeat in range(arguments.repeats):
        peak = product_rate(arguments.dtype)
        seconds = updates.through()
        rates.append(updates.targets / seconds)
        shares.append(arithmetic / seconds / peak)
        rate, share = rates[-1], shares[-1]
        print(f"repeat {repeat + 1}: {rate:.0f} target tokens/s, product {peak / 1e9:.0f} GFLOP/s, share {share:.2f}")
    print("\n| model | dtype | target tokens/s, min / median / max | share of the matrix product | padding | memory |")
    print("|---|---|---|---|---|---|")
    cells = [
        Path(arguments.config).stem,
        arguments.dtype,
        spread(rates),
        spread(shares, 2),
        f"{100 * updates.padding:.1f} %",
        f"{peak_memory():.0f} MiB",
    ]
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    run_script(main)
