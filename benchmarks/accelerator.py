"""What one accelerator does, in ten minutes:  python benchmarks/accelerator.py [--data=DIR] [--parts P ...]

Five parts in one call: the rates of the device, training, decoding, products of 8 bits, convolutions of single
channels. Every result is printed as a line of JSON when it is there, a table of all follows. A part begins no further
case after its share of --minutes, and one that fails leaves the others alone; then the status is 1. Programs are kept
in --cache, so that a second call compiles nothing. Without an accelerator it is refused, --small excepted. Assumptions:

* Training: fconv_wmt_en_de, bfloat16, full batches of random ids, vocabularies of 40,000, eight updates between two
  looks at the clock. The share counts the products of the model as it is written, three times those of its forward
  pass.
* Decoding: fconv_wmt_en_fr, fresh parameters, 6,003 sentences. The lengths are those of DIR/test.en, white-space words
  times 1.2, or without DIR drawn from a log-normal distribution with a mean of 27 sub-words. A hypothesis ends at its
  bound of 1.1 times the source, since fresh parameters rarely choose the end symbol. All of it once more with kernels
  of 8-bit integers (decode.py --int8), whose bound reads fewer bytes. The programs of all widths compile at once.
* The bandwidth bound of decoding: in each step of a batch the decoder's weights are read once, and each sentence's
  keys and values once in each attention layer, in the type of the computation. A second bound adds that the logits of
  each hypothesis are written and read once in float32. No other traffic is counted.

--small has tiny sizes, to try the script without an accelerator. Results belong into docs/performance.md.
"""

import argparse
import gzip
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import depthwise as single
import int8
import jax
import jax.numpy as jnp
import numpy as np
from machine import decoder_flops, describe, encoder_flops, run_script

from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build
from convs2s_jax.models import encoder_decoder, quantizing
from convs2s_jax.search.buckets import batches
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import translate
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.configured import compile_configured, fresh_state
from convs2s_jax.training.step import update

CONFIGS = Path(__file__).parents[1] / "configs"
Found = dict[str, object]
FIRST = 4
"""Ids below are special symbols."""
SIZES = {
    "train": "wmt_en_de",
    "decode": "wmt_en_fr",
    "vocabulary": 40_000,
    "side": 8192,
    "copied": 2**28,
    "batches": ((256, 64), (512, 64)),
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
    "train": "iwslt_de_en",
    "decode": "iwslt_de_en",
    "vocabulary": 300,
    "side": 256,
    "copied": 2**18,
    "batches": ((4, 8),),
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
    parser.add_argument("--data", type=Path, help="folder with test.en, plain or gzipped, for lengths of sentences")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS), help="beside the rates")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--cache", type=Path, help="folder for compiled programs")
    arguments = parser.parse_args()
    sizes = SMALL if arguments.small else SIZES
    if jax.default_backend() == "cpu" and not arguments.small:
        parser.error("JAX sees no accelerator; install its build for the device, or give --small")
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
                    rows.append(f"| {name} | further cases, if there are any | no time; give more --minutes |")
                    break
        except Exception as error:  # a device without room for one part may have it for the next
            failed = True
            print(json.dumps({"part": name, "error": f"{type(error).__name__}: {str(error)[:500]}"}), flush=True)
    print("\n| part | what | measured |\n|---|---|---|", *rows, sep="\n")
    sys.exit(1 if failed else 0)


def rates(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Product and copy of the device; later parts divide by them."""
    a = jax.random.normal(jax.random.key(0), (sizes["side"],) * 2).astype(arguments.dtype)
    best = min(timed(jax.jit(lambda a: a @ a), a, repeats=10, end=end))
    peaks["product"] = 2 * sizes["side"] ** 3 / best
    x = jnp.zeros(sizes["copied"])
    peaks["copy"] = 2 * x.nbytes / min(timed(jax.jit(lambda x: x + 1.0), x, repeats=10, end=end))
    yield {"what": f"product {sizes['side']}, {arguments.dtype}", "TFLOP/s": digits(peaks["product"] / 1e12)}
    yield {"what": "read and write of an array", "GB/s": digits(peaks["copy"] / 1e9)}


def training(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Whole updates, and their share of the product."""
    cfg, vocabulary = preset(sizes["train"], arguments.dtype), sizes["vocabulary"]
    steps = compile_configured(cfg.model, cfg.training)
    fresh = partial(fresh_state, model=cfg.model, training=cfg.training, source=vocabulary, target=vocabulary)
    state = jax.jit(fresh)(jax.random.key(1))
    for rows, length in sizes["batches"]:
        ids = jax.random.randint(jax.random.key(2), (2, rows, length), FIRST, vocabulary)
        batch = Batch(src=ids[0], tgt=ids[1])
        flops = 3 * rows * length * (encoder_flops(cfg.model) + decoder_flops(cfg.model, length, vocabulary))
        taken: list[float] = []
        while len(taken) <= sizes["repeats"] and (len(taken) < 3 or time.monotonic() < end):
            before, count = time.perf_counter(), 8 if taken else 1
            for number in range(count):
                state, sums = update(steps, state, [batch], jnp.float32(1e-4), jax.random.key(number))
            jax.block_until_ready((state, sums))
            taken.append((time.perf_counter() - before) / count)
        first, taken = taken[0], taken[1:]
        yield {
            "what": f"fconv_{sizes['train']}, {rows} x ({length}, {length})",
            "first s": digits(first),
            "ms": spread([1e3 * t for t in taken]),
            "tokens/s": spread([rows * length / t for t in taken]),
            "share of the product": spread([flops / t / peaks["product"] for t in taken]),
            "GB": memory(),
        }


def convolutions(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Each form of a convolution of single channels and XLA's grouped one: forward and both gradients."""
    del peaks
    B, T, C, H = sizes["rows"], sizes["length"], sizes["channels"], 4
    keys = jax.random.split(jax.random.key(0), 3)
    dy = jax.random.normal(keys[0], (B, T, C)).astype(arguments.dtype)
    for width in sizes["widths"]:
        x = jax.random.normal(keys[1], (B, T + width - 1, C)).astype(arguments.dtype)
        kernels = {"depthwise": (width, C), "lightweight": (width, H), "dynamic": (B, T, width, H)}
        for operation, shape in kernels.items():
            w = jax.random.normal(keys[2], shape).astype(arguments.dtype)
            taken = {}
            for name, form in single.OPERATIONS[operation].items():
                both = jax.jit(lambda w, x, form=form: (lambda y, pull: (y, pull(dy)))(*jax.vjp(form, w, x)))
                taken[f"{name} ms"] = digits(1e3 * min(timed(both, w, x, repeats=sizes["repeats"], end=end)))
            yield {"what": f"{operation}, width {width}, {B} x {T} x {C}", **taken}


def bytes_(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Products of decoding in 8-bit integers beside those in the type of the computation: `benchmarks/int8.py`."""
    del peaks
    cfg = preset(sizes["decode"], arguments.dtype).model
    layer, dim = cfg.decoder.layers[-1], cfg.decoder.out_dim
    rows = 5 * sizes["together"][0]
    shapes = {
        "softmax layer": (rows, dim, sizes["vocabulary"]),
        "convolution": (rows, layer.width * layer.channels, 2 * layer.channels),
    }
    for name, (rows, inputs, outputs) in shapes.items():
        x, w = jnp.ones((rows, inputs)), jnp.ones((inputs, outputs))
        taken = {}
        for dtype, form in (("int8", int8.integers), (arguments.dtype, int8.floats)):
            given = x.astype(dtype), w.astype(dtype)
            best = min(timed(jax.jit(form), *given, repeats=sizes["repeats"], end=end))
            taken[f"{dtype} TOP/s"] = digits(2 * rows * inputs * outputs / best / 1e12)
        yield {"what": f"{name}, {rows} x {inputs} x {outputs}", **taken}


def decoding(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """All sentences by beam search, beam 5, and the time that products and reading of weights alone would take."""
    cfg, vocabulary = preset(sizes["decode"], arguments.dtype).model, sizes["vocabulary"]
    params = encoder_decoder.init(jax.random.key(1), cfg, source_vocabulary=vocabulary, target_vocabulary=vocabulary)
    itemsize = jnp.dtype(arguments.dtype).itemsize
    floats = jax.block_until_ready(jax.jit(encoder_decoder.precompute, static_argnums=1)(params, cfg))
    integers = jax.block_until_ready(jax.jit(quantizing.quantize_kernels)(floats))
    search = SearchConfig(beam_size=5, max_length_a=1.1, max_length_b=0, stop="fairseq")
    drawn = np.random.default_rng(1)
    lengths = source_lengths(sizes, arguments.data)
    sources = [drawn.integers(FIRST, vocabulary, n) for n in lengths]
    attending = sum(cfg.decoder.attends(i) for i in range(len(cfg.decoder.layers)))
    for rows, params in itertools.product(sizes["together"], (floats, integers)):
        find = partial(translate, params, cfg, search, rows=rows, tokens=rows * 128, least_rows=rows)
        plan = batches([n + 1 for n in lengths], rows=rows, tokens=rows * 128)
        each = {bucket.shape: [sources[i] for i in bucket.indices] for bucket in plan}
        before = time.perf_counter()
        with ThreadPoolExecutor(len(each)) as pool:  # one batch of each width, to compile its program
            list(pool.map(lambda some, find=find: find(some), each.values()))
        find(sources)  # should a program have been missed
        first = time.perf_counter() - before
        weights = held(params.decoder.plain) - held(params.decoder.plain.embedding)
        taken, steps = [], []
        while len(taken) < 3 and (not taken or time.monotonic() < end):
            before = time.perf_counter()
            found = find(sources)
            taken.append(time.perf_counter() - before)
            steps = [len(one.best.tokens) + 1 for one in found]
        longest = [steps[i] for i in np.argsort(steps)[::-1][::rows]]  # of each batch, sorted by length
        keys_and_values = itemsize * 2 * cfg.embedding_dim * attending
        read = weights * sum(longest) + sum(s * (n + 1) * keys_and_values for s, n in zip(steps, lengths, strict=True))
        logits = read + 2 * 4 * 5 * rows * vocabulary * sum(longest)
        flops = sum(
            (n + 1) * encoder_flops(cfg) + 5 * s * decoder_flops(cfg, n + 1, vocabulary)
            for s, n in zip(steps, lengths, strict=True)
        )
        yield {
            "what": f"fconv_{sizes['decode']}, {len(sources)} sentences, beam 5, batch {rows}"
            + (", int8" if params is integers else ""),
            "compiling s": digits(first),
            "s": spread(taken),
            "share of the bandwidth bound": spread([read / peaks["copy"] / t for t in taken]),
            "share of it with logits": spread([logits / peaks["copy"] / t for t in taken]),
            "share of the product": spread([flops / peaks["product"] / t for t in taken]),
            "tokens each": f"{np.mean(lengths):.1f} to {np.mean(steps):.1f}",
            "GB": memory(),
        }


def preset(name: str, dtype: str) -> Config:
    """A configuration of fairseq's sizes."""
    given = [("data.dir", "."), ("model.dtype", dtype)]
    return build(Config, read_config(str(CONFIGS / f"fairseq_fconv_{name}.py"), given))


def source_lengths(sizes: Found, folder: Path | None) -> list[int]:
    """Sub-words of each source sentence, without the end symbol."""
    if folder is None:
        drawn = np.random.default_rng(0).lognormal(np.log(sizes["mean"]) - 0.18, 0.6, sizes["sentences"])
        return [int(n) for n in np.clip(drawn, 2, 126)]
    plain = folder / "test.en"
    with plain.open() if plain.exists() else gzip.open(folder / "test.en.gz", "rt") as file:
        words = [len(line.split()) for line in file]
    return [min(126, max(2, round(1.2 * words[i % len(words)]))) for i in range(sizes["sentences"])]


def timed(function, *given, repeats: int, end: float) -> list[float]:
    """Seconds of each call after the first, which compiles; at least one."""
    jax.block_until_ready(function(*given))
    taken: list[float] = []
    while len(taken) < repeats and (not taken or time.monotonic() < end):
        taken.append(single.seconds(function, *given))
    return taken


def held(tree) -> int:
    """Bytes of a tree of arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def memory() -> str:
    """Largest use of the device's memory so far, in GB, where it says so."""
    told = jax.devices()[0].memory_stats() or {}
    return digits(told["peak_bytes_in_use"] / 1e9) if "peak_bytes_in_use" in told else "-"


def spread(values: Sequence[float]) -> str:
    """Minimum, median and maximum."""
    return " / ".join(digits(v) for v in (min(values), statistics.median(values), max(values)))


def digits(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


PARTS = {
    "training": (training, 0.3),
    "decoding": (decoding, 0.4),
    "int8": (bytes_, 0.05),
    "convolutions": (convolutions, 0.2),
}
"""Each part, and its share of the time."""


if __name__ == "__main__":
    run_script(main)
