"""Decoding throughput:  python benchmarks/decode.py --data=DIR

DIR holds train.de, train.en and test.de (.gz). 1000 test sentences, sorted by length, every hypothesis of exactly 16
tokens; parameters are fresh: speed does not depend on their values. Figures of fairseq: ../shared/peer_speed.md.
"""

import argparse
import dataclasses
import statistics
import time

import jax
import numpy as np
from machine import decoder_flops, describe, encoder_flops, peak_memory, product_rate

from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build
from convs2s_jax.data import corpus, vocabulary
from convs2s_jax.models import encoder_decoder
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import translate
from convs2s_jax.training.compilations import CompileCounter
from convs2s_jax.training.config import Config
from train import CONFIG

TOKENS = 16
"""Symbols of every hypothesis, the end symbol counted."""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with train.de, train.en and test.de")
    parser.add_argument("--config", default=str(CONFIG))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 128], help="sentences in a batch")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    overrides = {"data.dir": arguments.data, "data.src": "de", "data.tgt": "en", "data.vocabulary.joint": "False"}
    overrides |= {"data.vocabulary.src_size": "10000", "data.vocabulary.tgt_size": "7000"}
    cfg = build(Config, read_config(arguments.config, list(overrides.items())))
    made = vocabulary.build(cfg.data.vocabulary, corpus.read(cfg.data, "train"), 1)
    sources = [np.asarray(ids) for ids in made.src.encode(corpus.read(cfg.data, "test").src)]
    params = encoder_decoder.init(
        jax.random.key(1), cfg.model, source_vocabulary=made.src.size, target_vocabulary=made.tgt.size
    )
    length = float(np.mean([len(s) + 1 for s in sources]))
    print(describe())
    print("\n| beam | batch | sentences/s, min / median / max | share of the matrix product | compilations | memory |")
    print("|---|---|---|---|---|---|")
    for beam in arguments.beams:
        search = SearchConfig(beam_size=beam, max_length_a=0.0, max_length_b=TOKENS - 1, min_length=TOKENS - 1)
        search = dataclasses.replace(search, stop="fairseq")
        flops = length * encoder_flops(cfg.model) + beam * TOKENS * decoder_flops(cfg.model, length, made.tgt.size)
        for rows in arguments.rows:
            with CompileCounter() as compiled:
                translate(params, cfg.model, search, sources, rows=rows)
            rates, shares = [], []
            for _ in range(arguments.repeats):
                peak = product_rate()
                before = time.perf_counter()
                found = translate(params, cfg.model, search, sources, rows=rows)
                rates.append(len(sources) / (time.perf_counter() - before))
                shares.append(rates[-1] * flops / peak)
            assert all(len(t.best.tokens) == TOKENS - 1 for t in found)
            print(
                f"| {beam} | {rows} | {min(rates):.0f} / {statistics.median(rates):.0f} / {max(rates):.0f} "
                f"| {statistics.median(shares):.2f} | {compiled.count} | {peak_memory():.0f} MiB |",
                flush=True,
            )


if __name__ == "__main__":
    main()
