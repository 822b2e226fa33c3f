"""Decoding throughput:  python benchmarks/decode.py --data=DIR [--shapes fconv_wmt_en_de] [--workdir=RUN]

DIR is a folder with train.de, train.en and test.de, plain or gzipped. The test sentences are sorted by length, and
every hypothesis has exactly 16 tokens. Parameters are random, because speed does not depend on their values. With
--workdir, a trained model translates the same sentences until the end symbol. With --shortlist, both are also measured
with shortlists of these numbers of words per source word, learned from the training text. The BLEU of a trained model
is printed. Results are in docs/performance.md.
"""

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from likely_words import learner
from machine import decoder_flops, describe, encoder_flops, peak_memory, positive, product_rate, run_script, spread
from updates import MULTI30K

from convs2s_jax.commands.shared import read_config
from convs2s_jax.data import parallel_text, vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.metrics.scoring import score
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.batching import Batching
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.search.translate import Translation, translate
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.training.run.config import Config
from convs2s_jax.translation.translator import load, precomputed

ROOT = Path(__file__).parents[1]
TOKENS = 16
"""Length of every hypothesis in symbols, including the end symbol."""
ALONE = 100
"""Maximum number of sentences if each one is a batch."""
HEAD = "| model | beam | batch | sentences/s, min / median / max | target tokens/s | share | compilations | memory |"


@dataclasses.dataclass
class Model:
    """The measured model: name, parameters, their configuration, the target vocabulary, shortlists by name."""

    name: str
    params: Any
    cfg: ModelConfig
    vocabulary: int
    shortlists: Mapping[str, Shortlist | None]


def main() -> None:
    """Run the measurements and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with train.de, train.en and test.de")
    parser.add_argument("--shapes", nargs="*", default=["fconv_iwslt_de_en"], help="presets: configs/fairseq_*.py")
    parser.add_argument("--workdir", help="a trained model of the same data, for natural lengths")
    parser.add_argument("--shortlist", type=int, nargs="*", default=[], help="numbers of likely words per source word")
    parser.add_argument("--beams", type=positive, nargs="+", default=[1, 5])
    parser.add_argument("--rows", type=positive, nargs="+", default=[1, 64, 128], help="sentences in a batch")
    parser.add_argument("--sentences", type=positive, default=1000)
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--int8", action="store_true", help="8-bit integer kernels, as decode.py --int8")
    arguments = parser.parse_args()
    print(describe(), flush=True)
    for shape in arguments.shapes:
        model, sources = fresh(shape, arguments)
        first_sentence(model, sources)
        print(f"\n{HEAD}\n|---|---|---|---|---|---|---|---|", flush=True)
        for beam in arguments.beams:
            search = SearchConfig(
                beam_size=beam, max_length_a=0.0, max_length_b=TOKENS - 1, min_length=TOKENS - 1, stop="fairseq"
            )
            for rows in arguments.rows:
                for few in model.shortlists:
                    found = throughput(model, search, sources, rows, arguments.repeats, few)
                    assert all(len(t.best.tokens) == TOKENS - 1 for t in found)
    if arguments.workdir:
        natural(Path(arguments.workdir), arguments)


def fresh(shape: str, arguments: argparse.Namespace) -> tuple[Model, list[np.ndarray]]:
    """Return a preset with vocabularies of 10k and 7k, and the test sentences."""
    overrides = {"data.dir": arguments.data, **MULTI30K}
    cfg = read_config(str(ROOT / "configs" / f"fairseq_{shape}.py"), list(overrides.items()))
    made = vocabulary.build(cfg.data.vocabulary, parallel_text.read(cfg.data, "train"), 1)
    test = parallel_text.read(cfg.data, "test").src
    sources = [np.asarray(ids) for ids in made.src.encode(test)][: arguments.sentences]
    model = dataclasses.replace(cfg.model, dtype=arguments.dtype)
    params = encoder_decoder.init(
        jax.random.key(1), model, source_vocabulary=made.src.size, target_vocabulary=made.tgt.size
    )
    before = time.perf_counter()
    params = jax.block_until_ready(jax.jit(conversion.precompute, static_argnums=1)(params, model))
    params = jax.jit(conversion.quantize_kernels)(params) if arguments.int8 else params
    print(f"\n{shape}: precomputed in {time.perf_counter() - before:.2f} s, compiled", flush=True)
    return Model(shape, params, model, made.tgt.size, learned(arguments, cfg, made)), sources


def learned(arguments: argparse.Namespace, cfg: Config, vocabularies: Vocabularies) -> dict[str, Shortlist | None]:
    """Return no shortlist (all words) and the requested shortlists, by name."""
    made: dict[str, Shortlist | None] = {"": None}
    if arguments.shortlist:
        learn = learner(dataclasses.replace(cfg.data, dir=arguments.data), vocabularies)
        for words in arguments.shortlist:
            before = time.perf_counter()
            made[f", {words} words"] = learn(words)
            print(f"\nshortlist of {words} words: {time.perf_counter() - before:.1f} s", flush=True)
    return made


def first_sentence(model: Model, sources: Sequence[np.ndarray]) -> None:
    """Print the seconds of a first translation, and of another of equal length; beam 5, model in memory."""
    search = SearchConfig(beam_size=5, max_length_a=0.0, max_length_b=TOKENS - 1, min_length=TOKENS - 1)
    times = []
    for source in (sources[0], *[sources[1]] * 5):
        before = time.perf_counter()
        translate(model.params, model.cfg, search, [source], batching=Batching(min_width=64))
        times.append(time.perf_counter() - before)
    warm = statistics.median(times[1:])
    print(f"\n{model.name}: first sentence {times[0]:.2f} s, compiled; the next {1000 * warm:.1f} ms", flush=True)


def throughput(
    model: Model,
    search: SearchConfig,
    sources: Sequence[np.ndarray],
    rows: int,
    repeats: int,
    few: str = "",
) -> list[Translation]:
    """Compile, measure, and print one row of the table. The share counts a softmax over all words."""
    shortlist = model.shortlists[few]
    sources = sources if rows > 1 else sources[:: max(1, len(sources) // ALONE)]
    length = float(np.mean([len(s) + 1 for s in sources]))
    with CompileCounter() as compiled:
        translate(model.params, model.cfg, search, sources, batching=Batching(size=rows), shortlist=shortlist)
    rates, shares = [], []
    for _ in range(repeats):
        peak = product_rate(model.cfg.dtype)
        before = time.perf_counter()
        found = translate(model.params, model.cfg, search, sources, batching=Batching(size=rows), shortlist=shortlist)
        rates.append(len(sources) / (time.perf_counter() - before))
        peak = max(peak, product_rate(model.cfg.dtype))
        steps = float(np.mean([len(t.best.tokens) + 1 for t in found]))
        flops = length * encoder_flops(model.cfg)
        flops += search.beam_size * steps * decoder_flops(model.cfg, length, model.vocabulary)
        shares.append(rates[-1] * flops / peak)
    print(
        f"| {model.name}{few} | {search.beam_size} | {rows} | {spread(rates)} "
        f"| {statistics.median(rates) * steps:.0f} | {statistics.median(shares):.2f} | {compiled.count} "
        f"| {peak_memory():.0f} MiB |",
        flush=True,
    )
    return found


def natural(workdir: Path, arguments: argparse.Namespace) -> None:
    """Measure a trained model; each hypothesis ends at its end symbol."""
    trained = precomputed(load(workdir, dtype=arguments.dtype, tell=print), int8=arguments.int8)
    text = parallel_text.read(dataclasses.replace(trained.cfg.data, dir=arguments.data), "test")
    references = text.tgt[: arguments.sentences]
    sources = [np.asarray(ids) for ids in trained.vocabularies.src.encode(text.src)][: arguments.sentences]
    few = learned(arguments, trained.cfg, trained.vocabularies)
    print(f"\nnatural lengths\n\n{HEAD}\n|---|---|---|---|---|---|---|---|", flush=True)
    scores = []
    for stop in ("fairseq", "exact"):
        for beam in arguments.beams:
            search = dataclasses.replace(trained.cfg.search, beam_size=beam, stop=stop)
            model = Model(f"trained, {stop}", trained.params, trained.models, trained.vocabularies.tgt.size, few)
            for rows, name in itertools.product((r for r in arguments.rows if r > 1), few):
                found = throughput(model, search, sources, rows, arguments.repeats, name)
                texts = [trained.vocabularies.tgt.decode(t.best.tokens.tolist()) for t in found]
                bleu = score(texts, [references], metrics=["bleu"], bleu_tokenize="none")["bleu"].value
                scores.append(f"{model.name}{name}, beam {beam}, batch {rows}: BLEU {bleu:.2f}")
    print("\n" + "\n".join(scores), flush=True)


if __name__ == "__main__":
    run_script(main)
