"""Benchmark one accelerator in ten minutes:  python benchmarks/accelerator.py [--data=DIR] [--parts P ...]

Six parts in one call: rates of the device, training, batches of several shapes, decoding, 8-bit products, and
depthwise convolutions. Each result is printed as a line of JSON as soon as it is available, followed by a table of all.
A part starts no further case after its share of --minutes. If a part fails, the others still run, and the exit status
is 1. Programs are kept in --cache, so that a second call compiles nothing. The script requires an accelerator, unless
--small is set. Assumptions:

* Training: fconv_wmt_en_de, bfloat16, full batches of random ids, vocabularies of 40,000, eight updates per timing. The
  share counts the products of the model as written, three times those of its forward pass.
* Shapes: kftt_ja_en_large, 8,000 words, batches of about 16,000 tokens in five of its shapes, each alone and in turn,
  and the host time to dispatch an update, from three calls on an idle device. On GPUs, compare with
  XLA_FLAGS=--xla_gpu_temp_buffer_use_separate_color=true, which is meant to keep CUDA graphs unchanged.
* Decoding: fconv_wmt_en_fr, random parameters, 6,003 sentences. The lengths are those of DIR/test.en, white-space words
  times 1.2, or without DIR sampled from a log-normal distribution with a mean of 27 sub-words. A hypothesis ends at its
  limit of 1.1 times the source, since random parameters rarely choose the end symbol. All of it is repeated with 8-bit
  kernels (decode.py --int8), whose bound reads fewer bytes. The programs of all widths compile concurrently.
* The bandwidth bound of decoding: in each step of a batch the decoder's weights are read once, and each sentence's
  keys and values once in each attention layer, in the dtype of the computation. A second bound adds that the logits of
  each hypothesis are written and read once in float32. No other traffic is counted.

--small uses tiny sizes, to try the script without an accelerator. Results belong in docs/performance.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
from accelerator_decoding import bytes_, decoding, source_lengths
from accelerator_tools import Found, digits, timed
from accelerator_training import convolutions, shapes, training
from machine import describe, run_script

SIZES = {
    "train": "fairseq_fconv_wmt_en_de",
    "decode": "fairseq_fconv_wmt_en_fr",
    "vocabulary": 40_000,
    "side": 8192,
    "copied": 2**28,
    "batches": ((256, 64), (512, 64)),
    "in_turn": "kftt_ja_en_large",
    "words": 8000,
    "shapes": ((1000, 8, 16), (664, 24, 24), (496, 32, 32), (280, 40, 56), (160, 64, 96)),
    "rows": 64,
    "length": 64,
    "channels": 1024,
    "widths": (3, 7, 15, 31),
    "sentences": 6003,
    "mean": 27,
    "together": (512,),
    "repeats": 10,
}
SMALL = {
    **SIZES,
    "train": "fairseq_fconv_iwslt_de_en",
    "decode": "fairseq_fconv_iwslt_de_en",
    "vocabulary": 300,
    "side": 256,
    "copied": 2**18,
    "batches": ((4, 8),),
    "in_turn": "fairseq_fconv_iwslt_de_en",
    "words": 300,
    "shapes": ((4, 8, 8), (2, 8, 16)),
    "rows": 2,
    "length": 8,
    "channels": 8,
    "widths": (3,),
    "sentences": 12,
    "mean": 6,
    "together": (8,),
    "repeats": 2,
}


def main() -> None:
    """Run the parts and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with test.en, plain or gzipped, for sentence lengths")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS), help="parts to run, in addition to the rates"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--cache", type=Path, help="folder for compiled programs")
    arguments = parser.parse_args()
    sizes = SMALL if arguments.small else SIZES
    if jax.default_backend() == "cpu" and not arguments.small:
        parser.error("JAX sees no accelerator; install JAX for the device, or set --small")
    try:
        source_lengths(sizes, arguments.data)
    except OSError as error:
        parser.error(f"--data: {error}")
    if arguments.cache:
        jax.config.update("jax_compilation_cache_dir", str(arguments.cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    print(describe(), flush=True)
    peaks: Found = {}
    rows, failed = [], False
    for name in ("rates", *arguments.parts):
        part, share = {"rates": (rates, 0.05), **PARTS}[name]
        end = time.monotonic() + 60 * arguments.minutes * share
        try:
            for found in part(sizes, arguments, peaks, end):
                print(json.dumps({"part": name, **found}), flush=True)
                rows.append(f"| {name} | {found.pop('what')} | {', '.join(f'{k} {v}' for k, v in found.items())} |")
                if time.monotonic() > end:
                    rows.append(f"| {name} | further cases, if any | no time left; increase --minutes |")
                    break
        except Exception as error:  # the next part may fit into the device's memory
            failed = True
            print(json.dumps({"part": name, "error": f"{type(error).__name__}: {str(error)[:500]}"}), flush=True)
    print("\n| part | what | measured |\n|---|---|---|", *rows, sep="\n")
    sys.exit(1 if failed else 0)


def rates(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Measure a product and a copy on the device. Later parts divide by these rates."""
    a = jax.random.normal(jax.random.key(0), (sizes["side"],) * 2).astype(arguments.dtype)
    best = min(timed(jax.jit(lambda a: a @ a), a, repeats=10, end=end))
    peaks["product"] = 2 * sizes["side"] ** 3 / best
    x = jnp.zeros(sizes["copied"])
    peaks["copy"] = 2 * x.nbytes / min(timed(jax.jit(lambda x: x + 1.0), x, repeats=10, end=end))
    yield {"what": f"product {sizes['side']}, {arguments.dtype}", "TFLOP/s": digits(peaks["product"] / 1e12)}
    yield {"what": "read and write of an array", "GB/s": digits(peaks["copy"] / 1e9)}


PARTS = {
    "training": (training, 0.25),
    "shapes": (shapes, 0.15),
    "decoding": (decoding, 0.35),
    "int8": (bytes_, 0.05),
    "convolutions": (convolutions, 0.15),
}
"""Each part and its share of the time."""


if __name__ == "__main__":
    run_script(main)
