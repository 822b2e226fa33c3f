"""Parts of `benchmarks/accelerator.py`: beam search over many sentences, and its products with 8-bit integers."""

import argparse
import dataclasses
import gzip
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import int8
import jax
import jax.numpy as jnp
import numpy as np
from accelerator_tools import FIRST, Found, digits, held, memory, preset, spread, timed
from machine import decoder_flops, encoder_flops

from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.search.batching import Batching, batches
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import translate


def bytes_(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Compare products of decoding with 8-bit integers and in the dtype of the computation (`benchmarks/int8.py`)."""
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
    """Decode all sentences with beam 5, and compare with the time of products and of reading weights alone."""
    cfg, vocabulary = preset(sizes["decode"], arguments.dtype).model, sizes["vocabulary"]
    params = encoder_decoder.init(jax.random.key(1), cfg, source_vocabulary=vocabulary, target_vocabulary=vocabulary)
    itemsize = jnp.dtype(arguments.dtype).itemsize
    floats = jax.block_until_ready(jax.jit(conversion.precompute, static_argnums=1)(params, cfg))
    integers = jax.block_until_ready(jax.jit(conversion.quantize_kernels)(floats))
    search = SearchConfig(beam_size=5, max_length_a=1.1, max_length_b=0, stop="fairseq")
    drawn = np.random.default_rng(1)
    lengths = source_lengths(sizes, arguments.data)
    sources = [drawn.integers(FIRST, vocabulary, n) for n in lengths]
    attending = sum(cfg.decoder.attends(i) for i in range(len(cfg.decoder.layers)))
    for rows, params in itertools.product(sizes["together"], (floats, integers)):
        batching = Batching(size=rows, tokens=rows * 128, min_rows=rows)
        find = partial(translate, params, cfg, search, batching=batching)
        plan = batches([n + 1 for n in lengths], batching)
        each = {bucket.shape: [sources[i] for i in bucket.indices] for bucket in plan}
        before = time.perf_counter()
        with ThreadPoolExecutor(len(each)) as pool:  # one batch of each width, to compile its program
            list(pool.map(lambda some, find=find: find(some), each.values()))
        find(sources)  # in case a program was missed
        first = time.perf_counter() - before
        decoder = params.decoder
        weights = held(dataclasses.replace(decoder, tables=None)) - held(decoder.embedding)
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
            "what": f"{sizes['decode']}, {len(sources)} sentences, beam 5, batch {rows}"
            + (", int8" if params is integers else ""),
            "compiling s": digits(first),
            "s": spread(taken),
            "share of the bandwidth bound": spread([read / peaks["copy"] / t for t in taken]),
            "share of it with logits": spread([logits / peaks["copy"] / t for t in taken]),
            "share of the product": spread([flops / peaks["product"] / t for t in taken]),
            "tokens each": f"{np.mean(lengths):.1f} to {np.mean(steps):.1f}",
            "GB": memory(),
        }


def source_lengths(sizes: Found, folder: Path | None) -> list[int]:
    """Return the number of sub-words of each source sentence, without the end symbol."""
    if folder is None:
        drawn = np.random.default_rng(0).lognormal(np.log(sizes["mean"]) - 0.18, 0.6, sizes["sentences"])
        return [int(n) for n in np.clip(drawn, 2, 126)]
    plain = folder / "test.en"
    with plain.open() if plain.exists() else gzip.open(folder / "test.en.gz", "rt") as file:
        words = [len(line.split()) for line in file]
    return [min(126, max(2, round(1.2 * words[i % len(words)]))) for i in range(sizes["sentences"])]
