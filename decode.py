"""Translate with a trained model:  python decode.py --workdir=DIR [--input=FILE] [--output=FILE] [--reference=FILE].

Reads standard input and writes standard output unless told otherwise; one line in, one line out.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from absl import flags
from tqdm import tqdm

from convs2s_jax.core.command_line import run
from convs2s_jax.core.config import build, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import corpus
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import Translation
from convs2s_jax.training import scoring
from convs2s_jax.training.translator import Translator, load, text_of, translate_lines

WORKDIR = flags.DEFINE_string("workdir", "", "folder of a run of train.py")
CHECKPOINT = flags.DEFINE_integer("checkpoint", None, "step to decode with; without it, the best on validation")
INPUT = flags.DEFINE_string("input", "-", "source text, plain or gzipped, one sentence a line; - is standard input")
OUTPUT = flags.DEFINE_string("output", "-", "where translations go, one line each; - is standard output")
REFERENCE = flags.DEFINE_string("reference", "", "reference translations; scores are printed on standard error")
SPLIT = flags.DEFINE_enum("split", None, corpus.SPLITS, "translate and score this split of the run's own corpus")
SHOW = flags.DEFINE_integer("show", 0, "print this many sources with translation and reference on standard error")
BLEU_TOKENIZE = flags.DEFINE_string("bleu_tokenize", None, "sacreBLEU's tokeniser; without it, the run's own")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "most sentences in a batch", lower_bound=1)
BATCH_TOKENS = flags.DEFINE_integer("batch_tokens", 16384, "most source tokens in a batch", lower_bound=1)

# Each of these replaces one field of the run's own search options where it is given.
SEARCH = {
    "beam_size": flags.DEFINE_integer("beam_size", None, "hypotheses kept; 1 is greedy search"),
    "length_penalty": flags.DEFINE_float("length_penalty", None, "alpha: scores are divided by length ** alpha"),
    "min_length": flags.DEFINE_integer("min_length", None, "least tokens before the end symbol"),
    "max_length_a": flags.DEFINE_float("max_length_a", None, "most tokens: a * source length + b"),
    "max_length_b": flags.DEFINE_integer("max_length_b", None, "most tokens: a * source length + b"),
    "temperature": flags.DEFINE_float("temperature", None, "logits are divided by it"),
    "unk_penalty": flags.DEFINE_float("unk_penalty", None, "nats taken from each unknown symbol"),
    "stop": flags.DEFINE_enum("stop", None, ("exact", "fairseq"), "exact: when no better hypothesis can come"),
}
UNNORMALIZED = flags.DEFINE_bool("unnormalized", False, "rank by the sum of log-probabilities")


def tell(sentence: str) -> None:
    """A sentence for the user, beside the translations."""
    print(sentence, file=sys.stderr)


def main(overrides: list[tuple[str, str]]) -> None:
    """Load, translate, write, score."""
    if overrides:
        raise UserError(f"--config.{overrides[0][0]}: decoding takes its configuration from --workdir")
    if SPLIT.value and (INPUT.value != "-" or REFERENCE.value):
        raise UserError("--split brings its own source and reference: leave out --input and --reference")
    if not WORKDIR.value:
        raise UserError("--workdir is missing: decode.py --workdir=runs/demo")
    if BLEU_TOKENIZE.value:
        scoring.check_tokenizer(BLEU_TOKENIZE.value)
    with output(OUTPUT.value) as file:
        decode(file)


def decode(file: BinaryIO) -> None:
    """Translate into an open file and score."""
    translator = load(Path(WORKDIR.value), step=CHECKPOINT.value, tell=tell)
    lines, references = read(translator)
    search = search_options(translator.cfg.search)
    with tqdm(total=len(lines), unit="line", disable=not sys.stderr.isatty()) as bar:
        found = translate_lines(
            translator, search, lines, rows=BATCH_SIZE.value, tokens=BATCH_TOKENS.value, progress=bar.update
        )
    warn(found)
    hypotheses = [text_of(translator, translation) for translation in found]
    file.write("".join(line + "\n" for line in hypotheses).encode())
    for source, hypothesis, reference in list(zip(lines, hypotheses, references or lines, strict=True))[: SHOW.value]:
        tell(f"  source      {source}\n  translation {hypothesis}")
        tell(f"  reference   {reference}\n" if references is not None else "")
    if references is not None:
        tokenize = BLEU_TOKENIZE.value or translator.cfg.training.bleu_tokenize
        tell(scoring.report(scoring.score(hypotheses, references, bleu_tokenize=tokenize)))


def read(translator: Translator) -> tuple[Sequence[str], Sequence[str] | None]:
    """Source lines, and reference lines where there are any."""
    if SPLIT.value:
        text = corpus.read(translator.cfg.data, SPLIT.value)
        return text.src, text.tgt
    lines = corpus.read_lines(INPUT.value)
    if not REFERENCE.value:
        return lines, None
    references = corpus.read_lines(REFERENCE.value)
    if len(references) != len(lines):
        raise UserError(
            f"{INPUT.value} has {len(lines)} lines, {REFERENCE.value} {len(references)}: each line needs its reference"
        )
    return lines, references


def search_options(cfg: SearchConfig) -> SearchConfig:
    """The run's own search options with those of the command line put in."""
    values = to_dict(cfg) | {name: flag.value for name, flag in SEARCH.items() if flag.value is not None}
    if UNNORMALIZED.value:
        values["normalize"] = False
    return build(SearchConfig, values, "search")


def warn(found: Sequence[Translation]) -> None:
    """Name the lines of which only the beginning could be translated."""
    name = SPLIT.value or ("standard input" if INPUT.value == "-" else INPUT.value)
    for number, translation in enumerate(found, start=1):
        if translation.cut:
            tell(f"{name}, line {number}: the last {translation.cut} tokens exceed the model's positions: left out")


@contextlib.contextmanager
def output(name: str) -> Iterator[BinaryIO]:
    """Where translations go. It is opened before the work begins; a file appears only when it is whole."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    path = Path(name).resolve()
    plain = path.is_file() or not path.exists()  # a device or a pipe is written to, never replaced
    part = path.with_name(f".{path.name}.part") if plain else path
    try:
        with part.open("wb") as file:
            yield file
        if plain:
            os.replace(part, path)
    except OSError as error:
        raise UserError(f"--output={name} cannot be written: {error.strerror}") from error
    finally:
        if plain:
            part.unlink(missing_ok=True)


if __name__ == "__main__":
    run(main)
