"""Translate, or label:  python decode.py --workdir=DIR [--input=FILE] [--output=FILE] [--reference=FILE].

Reads standard input and writes standard output unless told otherwise; one line in, one line out. docs/decoding.md has
an example for every flag.
"""

import sys
from typing import Any, get_args

from absl import flags
from tqdm import tqdm

from convs2s_jax.core.command_line import run
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.corpora import SPLITS
from convs2s_jax.metrics import scoring
from convs2s_jax.search.config import LengthPenalty, Stop
from convs2s_jax.translation import decoding as job
from convs2s_jax.translation import interactive
from convs2s_jax.translation.options import Options

FILES: dict[str, Any] = {  # model and files
    "workdir": flags.DEFINE_list("workdir", [], "folder of a run of train.py; of several, A,B, the ensemble decodes"),
    "checkpoint": flags.DEFINE_list(
        "checkpoint", [], "step to decode with, without it the best on validation; the kernels of several are averaged"
    ),
    "dtype": flags.DEFINE_enum("dtype", None, ("float32", "bfloat16"), "of products; without it, the run's own"),
    "lm": flags.DEFINE_string("lm", "", "folder of a run of a language model, whose scores are added to the model's"),
    "input": flags.DEFINE_string("input", "-", "source text, plain or gzipped, a sentence a line; - is standard input"),
    "output": flags.DEFINE_string("output", "-", "where translations go; - is standard output"),
    "resume": flags.DEFINE_bool("resume", False, "go on with an --output that was interrupted"),
    "interactive": flags.DEFINE_bool("interactive", False, "translate each line as it is typed"),
    "reference": flags.DEFINE_list(
        "reference", [], "reference translations, or right labels; scores are printed on standard error; A,B: several"
    ),
    "metrics": flags.DEFINE_list(
        "metrics", [], f"what to score by: {', '.join(scoring.METRICS)}; without it, what the run was told"
    ),
    "bleu_tokenize": flags.DEFINE_string("bleu_tokenize", None, "sacreBLEU's tokeniser; without it, the run's own"),
    "split": flags.DEFINE_enum("split", None, SPLITS, "translate and score this split of the run's own corpus"),
    "show": flags.DEFINE_integer("show", 0, "print this many sources with translation and reference", lower_bound=0),
    "batch_size": flags.DEFINE_integer("batch_size", 64, "most sentences in a batch"),
    "batch_tokens": flags.DEFINE_integer("batch_tokens", 16384, "most source tokens in a batch"),
    "window": flags.DEFINE_integer("window", 4096, "lines that are translated before the first of them are written"),
}
RESULTS: dict[str, Any] = {  # what is asked for and how it is shown
    "format": flags.DEFINE_enum("format", "text", ("text", "json", "fairseq"), "text, JSON lines, or S- H- D- P- A-"),
    "nbest": flags.DEFINE_integer("nbest", 1, "hypotheses of each line, in the formats json and fairseq"),
    "prefix": flags.DEFINE_string("prefix", "", "file: words that the translation of each line begins with"),
    "constraints": flags.DEFINE_string("constraints", "", "file: phrases, TAB between them, that must occur"),
    "score": flags.DEFINE_string("score", "", "file: translations of the lines, to be scored; nothing is searched"),
    "replace_unk": flags.DEFINE_bool("replace_unk", False, "put the attended source word in place of an unknown word"),
    "unk_dictionary": flags.DEFINE_string("unk_dictionary", "", "file: source word, TAB, what replaces it there"),
    "seed": flags.DEFINE_integer("seed", None, "of the samples"),
}
SEARCH: dict[str, Any] = {  # each replaces one field of the run's own search options where it is given
    "beam_size": flags.DEFINE_integer("beam_size", None, "hypotheses kept; 1 is greedy search"),
    "length_penalty": flags.DEFINE_float("length_penalty", None, "alpha: scores are divided by length ** alpha"),
    "length_penalty_kind": flags.DEFINE_enum(
        "length_penalty_kind",
        None,
        get_args(LengthPenalty),
        "power: length ** alpha; gnmt: ((5 + length) / 6) ** alpha",
    ),
    "coverage_penalty": flags.DEFINE_float("coverage_penalty", None, "weight of source words that got no attention"),
    "unk_penalty": flags.DEFINE_float("unk_penalty", None, "nats taken from each unknown symbol"),
    "lm_weight": flags.DEFINE_float("lm_weight", None, "of the log-probabilities of --lm in the scores"),
    "min_length": flags.DEFINE_integer("min_length", None, "least tokens before the end symbol"),
    "max_length_a": flags.DEFINE_float("max_length_a", None, "most tokens: a * source length + b"),
    "max_length_b": flags.DEFINE_integer("max_length_b", None, "most tokens: a * source length + b"),
    "no_repeat_ngram": flags.DEFINE_integer("no_repeat_ngram", None, "n-grams of this size occur once at most"),
    "temperature": flags.DEFINE_float("temperature", None, "logits are divided by it"),
    "stop": flags.DEFINE_enum("stop", None, get_args(Stop), "exact: when no better hypothesis can come"),
    "sampling": flags.DEFINE_bool("sampling", None, "draw beam_size translations at random"),
    "top_k": flags.DEFINE_integer("top_k", None, "sample among the k most probable symbols"),
    "top_p": flags.DEFINE_float("top_p", None, "sample among the fewest symbols of this probability together"),
    "diverse_groups": flags.DEFINE_integer("diverse_groups", None, "groups of hypotheses that avoid each other"),
    "diverse_strength": flags.DEFINE_float("diverse_strength", None, "nats by which they do"),
}
UNNORMALIZED = flags.DEFINE_bool("unnormalized", None, "rank by the sum of log-probabilities")


def tell(sentence: str) -> None:
    """A sentence for the user, beside the translations and the progress bar."""
    tqdm.write(sentence, file=sys.stderr)


def options() -> Options:
    """The flags as a record."""
    values: dict[str, Any] = {name: flag.value for name, flag in (FILES | RESULTS).items()}
    try:
        values["checkpoint"] = tuple(int(step) for step in values["checkpoint"])
    except ValueError as error:
        raise UserError(
            f"--checkpoint={','.join(values['checkpoint'])}: steps are whole numbers, as in 100,200"
        ) from error
    search = {name: flag.value for name, flag in SEARCH.items() if flag.value is not None}
    if UNNORMALIZED.value is not None:
        search["normalize"] = not UNNORMALIZED.value
    lists = {name: tuple(values[name]) for name in ("workdir", "reference", "metrics")}
    return Options(**values | lists | {"search": search})


def main(overrides: list[tuple[str, str]]) -> None:
    """Translate a file, or what is typed."""
    if overrides:
        raise UserError(f"--config.{overrides[0][0]}: decoding takes its configuration from --workdir")
    given = options()
    if given.interactive:
        interactive.interact(given, tell=tell)
    else:
        job.decode(given, tell=tell)


if __name__ == "__main__":
    run(main)
