"""Filters and normalisation beside tokenising, on one core:  python benchmarks/filters.py train.de train.en

Microseconds a pair (minimum / median / maximum of blocks of 4096 pairs), each part measured on the same blocks, one
after another: tokenising both sides with SentencePiece BPE of 16,000 learned from the text, reading visible text, each
filter, all of them but languages, languages, and each normalisation.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from machine import describe, positive, run_script, spread

from convs2s_jax.core.text import normalizer
from convs2s_jax.data import vocabulary
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.filters import Filter, FilterConfig
from convs2s_jax.data.lines import BLOCK
from convs2s_jax.data.text_files import each_line

PARTS = {
    "nothing (reading visible text)": {},
    "lengths and ratio, words": {"min_length": 1, "max_length": 100, "max_ratio": 3.0},
    "identical sides": {"drop_identical": True},
    "scripts of both sides": {"scripts": [["Latin"], ["Latin"]]},
    "repeated pairs": {"drop_repeated": ["pairs"]},
    "repeated pairs, sources, targets": {"drop_repeated": ["pairs", "sources", "targets"]},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", help="source file")
    parser.add_argument("tgt", help="target file")
    parser.add_argument("--blocks", type=positive, default=7, help="blocks of 4096 pairs to measure")
    arguments = parser.parse_args()
    print(describe())
    sides = [[*itertools.islice(each_line(file), BLOCK * arguments.blocks)] for file in (arguments.src, arguments.tgt)]
    sizes = VocabularyConfig(src_size=16_000, tgt_size=16_000, joint=True)
    made = vocabulary.build(sizes, ParallelText(sides[0], sides[1], "train"), seed=1)
    everything = {name: value for part in PARTS.values() for name, value in part.items()}
    languages = {"languages": [Path(file).suffix[1:] for file in (arguments.src, arguments.tgt)]}

    def tokenize(pairs: list[tuple[str, str]]) -> None:
        for lines in zip(*pairs, strict=True):
            made.src.encode(lines)

    def normalized(rule: str) -> Callable[[list[tuple[str, str]]], object]:
        clean = normalizer((rule,))
        return lambda pairs: [[*map(clean, pair)] for pair in pairs]

    ways: dict[str, Callable[[list[tuple[str, str]]], object]] = {"tokenising": tokenize}
    for name, part in {**PARTS, "all of these": everything, "languages of both sides": languages}.items():
        ways[name] = Filter(FilterConfig(**part), (0, 1), None).keep
    ways |= {"nfkc": normalized("nfkc"), "moses": normalized("moses")}
    times: dict[str, list[float]] = {name: [] for name in ways}
    pairs = [*zip(*sides, strict=True)]
    for first in range(0, len(pairs), BLOCK):
        for name, way in ways.items():
            block, before = pairs[first : first + BLOCK], time.process_time()
            way(block)
            times[name].append((time.process_time() - before) / len(block) * 1e6)
    for name, found in times.items():
        print(f"{name}: {spread(found, 1)} us a pair")


if __name__ == "__main__":
    run_script(main)
