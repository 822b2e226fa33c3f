"""Training throughput:  python benchmarks/train.py --data=DIR

DIR holds train.de and train.en (.gz). Batches are those of the batch plan at 4000 tokens; target tokens are counted
without padding; batches are on the device beforehand. Compare shares of the matrix-product rate, not seconds:
machines are shared. See ../shared/peer_speed.md for fairseq's figures.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from machine import decoder_flops, describe, encoder_flops, peak_memory, product_rate

from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build
from convs2s_jax.data import plan
from convs2s_jax.training import step as stepping
from convs2s_jax.training.batches import batch_on
from convs2s_jax.training.config import Config
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.parallel import compile_steps
from convs2s_jax.training.prepare import prepare

CONFIG = Path(__file__).parents[1] / "configs" / "fairseq_fconv_iwslt_de_en.py"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with train.de and train.en")
    parser.add_argument("--config", default=str(CONFIG))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=48, help="updates of one repeat")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    overrides = {
        "data.dir": arguments.data,
        "data.src": "de",
        "data.tgt": "en",
        "data.vocabulary.joint": "False",
        "data.vocabulary.src_size": "10000",
        "data.vocabulary.tgt_size": "7000",
        "data.batch.tokens": "4000",
        "model.dropout": "0.2",
        "model.dtype": arguments.dtype,
    }
    cfg = build(Config, read_config(arguments.config, list(overrides.items())))
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        run = prepare(cfg, Path(folder), print)
        src, tgt = run.train.lengths()
        epoch = plan.plan_epoch(src, tgt, run.rows, run.shapes, seed=1, epoch=1)
        chosen = epoch.batches[: arguments.steps]
        mesh = make(MeshConfig(data=1), jax.devices()[:1])
        batches = [batch_on(mesh, run.train, epoch, planned) for planned in chosen]
    vocabulary = run.vocabularies.tgt.size
    state = stepping.init(jax.random.key(1), cfg.model, cfg.training, source=10_000, target=vocabulary)
    steps = compile_steps(cfg.model, cfg.training)
    before = time.perf_counter()
    for shape in {b.src.shape + b.tgt.shape: b for b in batches}.values():
        state, sums = stepping.update(steps, state, [shape], jnp.float32(0.25), jax.random.key(0))
    jax.block_until_ready(sums)
    print(f"{len(run.shapes)} shapes compiled in {time.perf_counter() - before:.1f} s")

    tokens = sum(int((b.tgt != 1).sum()) for b in batches)
    sources = sum(int((b.src != 1).sum()) for b in batches)
    arithmetic = 3 * (
        sources * encoder_flops(cfg.model)
        + tokens * decoder_flops(cfg.model, sources / sum(len(c.rows) for c in chosen), vocabulary)
    )
    rates, shares = [], []
    for repeat in range(arguments.repeats):
        peak = product_rate(arguments.dtype)
        before = time.perf_counter()
        for i, batch in enumerate(batches):
            state, sums = stepping.update(steps, state, [batch], jnp.float32(0.25), jax.random.key(i))
        jax.block_until_ready(sums)
        seconds = time.perf_counter() - before
        rates.append(tokens / seconds)
        shares.append(arithmetic / seconds / peak)
        rate, share = rates[-1], shares[-1]
        print(f"repeat {repeat + 1}: {rate:.0f} target tokens/s, product {peak / 1e9:.0f} GFLOP/s, share {share:.2f}")
    print("\n| model | dtype | target tokens/s, min / median / max | share of the matrix product | padding | memory |")
    print("|---|---|---|---|---|---|")
    cells = [
        Path(arguments.config).stem,
        arguments.dtype,
        f"{min(rates):.0f} / {statistics.median(rates):.0f} / {max(rates):.0f}",
        f"{min(shares):.2f} / {statistics.median(shares):.2f} / {max(shares):.2f}",
        f"{100 * epoch.padding:.1f} %",
        f"{peak_memory():.0f} MiB",
    ]
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
