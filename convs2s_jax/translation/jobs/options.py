"""The options of decoding other than those of the search, and their consistency checks."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.data.text_files import name_of
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.jobs.output import descriptor_of

TRANSLATING = MappingProxyType({"translating": True})
"""Metadata of options that do not apply to labelling."""
READ = ("input", "prefix", "constraints", "score", "unk_dictionary", "shortlist")
"""Options for a single file to read; --reference accepts several."""
_SCORING = {field.name for field in dataclasses.fields(SearchConfig) if "scoring" in field.metadata}


def flags(names: Iterable[str]) -> str:
    """Flags as they are written, separated by commas: --beam_size, --normalize."""
    return ", ".join(f"--{name}" for name in names)


def is_stdin(path: str) -> bool:
    """Return whether this is a name of standard input."""
    return path == "-" or descriptor_of(path) == 0


def check_read_once(given: Sequence[str]) -> None:
    """Reject more than one flag that reads standard input.

    Raises:
      UserError: there are several; the message lists them.
    """
    check(len(given) < 2, f"{' and '.join(given)} read standard input, which can be read only once; use files instead")


def overridden(
    own: SearchConfig, values: Mapping[str, Any], *, given: Iterable[str] | None = None, attends: bool = True
) -> SearchConfig:
    """Return a run's search options with the given fields changed by flags.

    Args:
      own: the search options of the run.
      values: the fields to change.
      given: names of the fields that the user has set; None for all of `values`.
      attends: whether the model has attention weights.

    Raises:
      UserError: an invalid value, fields that contradict each other, or options that have no effect or that the model
        does not support; the message begins with a flag.
    """
    try:
        search = dataclasses.replace(own, **values)
    except UserError as error:
        raise UserError(f"--{error}") from None
    names = set(values if given is None else given)
    check(
        "diverse_strength" not in names or search.diverse_groups > 1,
        "--diverse_strength without --diverse_groups: a single group has no other to differ from; leave it out",
    )
    check(
        "stop" not in names or not search.sampling,
        "--stop with --sampling: each sample is drawn to its end; leave one out",
    )
    for name in ("length_penalty", "length_penalty_kind"):
        check(
            name not in names or search.normalize,
            f"--{name} with --nonormalize: scores are not divided by a power of the length; leave one out",
        )
    check(
        attends or search.coverage_penalty == 0,
        f"--coverage_penalty is {search.coverage_penalty} and the model has no attention to cover the source; use "
        "--coverage_penalty=0",
    )
    return search


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What to decode, with which model, and how to write the results. Each field is a flag (docs/decoding.md).

    Files and folders may be addresses in object stores (gs://BUCKET/NAME, s3://BUCKET/NAME; docs/object-stores.md).

    Attributes:
      workdir: folder of a training run; several (A,B) form an ensemble.
      checkpoint: steps of the checkpoints to load, or last:N for the last N; the kernels of several are averaged. By
        default, the best checkpoint on validation.
      dtype: dtype of matrix products and activations; by default, the run's.
      int8: compute convolutions and the softmax with 8-bit integers. This is 1.6 to 2 times as fast on CPUs with VNNI
        and jax 0.11 or later, no faster on an H200, and not tested on TPUs.
      lm: workdir of a language model whose log-probabilities are added to the model's, weighted by lm_weight.
      shortlist: file written by `convs2s shortlist`: translations use only the likely words of their source and the
        most frequent words, which is faster.
      input: source text, plain or gzipped, one sentence per line; "-" is standard input.
      output: file for the results; "-" is standard output.
      resume: continue an interrupted --output.
      interactive: translate each line as it is typed.
      reference: file of reference translations, or of correct labels; several (A,B) are alternative references. Scores
        are printed to standard error.
      metrics: metrics to compute, from bleu, chrf, ter, exact, rouge and d2l_bleu; by default, those of the run.
      bleu_tokenize: sacreBLEU's tokeniser; by default, the run's.
      split: translate and score this split of the run's corpus, instead of an input and a reference.
      show: print this many sources with their translations and references.
      batch_size: maximum number of sentences in a batch.
      batch_tokens: maximum number of source tokens in a batch.
      window: number of lines to translate before their results are written.
      format: text is one line per source line; json is one object per line; fairseq is the S- T- H- D- P- A- lines of
        fairseq-generate.
      nbest: hypotheses to write for each line, with --format=json or fairseq.
      prefix: file with one line per source line: words that its translation must begin with.
      constraints: file with one line per source line: TAB-separated phrases that its translation must contain.
      score: file of translations to score, one per source line; nothing is searched.
      replace_unk: replace each unknown word with the source word that gets the most attention.
      unk_dictionary: dictionary for those replacements, a file with one source word, TAB, target word per line.
      seed: seed of sampling; 0 by default.
      search: fields of `SearchConfig` that override the run's.
      corpus: where the corpus of --split is now, as (path, text) of --config.data.dir and --config.data.files.
    """

    workdir: tuple[str, ...] = ()
    checkpoint: tuple[str, ...] = ()
    dtype: Literal["float32", "bfloat16"] | None = None
    int8: bool = dataclasses.field(default=False, metadata=TRANSLATING)
    lm: str = dataclasses.field(default="", metadata=TRANSLATING)
    shortlist: str = dataclasses.field(default="", metadata=TRANSLATING)
    input: str = "-"
    output: str = "-"
    resume: bool = False
    interactive: bool = False
    reference: tuple[str, ...] = ()
    metrics: tuple[str, ...] = dataclasses.field(default=(), metadata=TRANSLATING)
    bleu_tokenize: str | None = dataclasses.field(default=None, metadata=TRANSLATING)
    split: Literal["train", "valid", "test"] | None = None
    show: int = 0
    batch_size: int = 64
    batch_tokens: int = 16384
    window: int = 4096
    format: Literal["text", "json", "fairseq"] = "text"
    nbest: int = dataclasses.field(default=1, metadata=TRANSLATING)
    prefix: str = dataclasses.field(default="", metadata=TRANSLATING)
    constraints: str = dataclasses.field(default="", metadata=TRANSLATING)
    score: str = dataclasses.field(default="", metadata=TRANSLATING)
    replace_unk: bool = dataclasses.field(default=False, metadata=TRANSLATING)
    unk_dictionary: str = dataclasses.field(default="", metadata=TRANSLATING)
    seed: int | None = dataclasses.field(default=None, metadata=TRANSLATING)
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata=TRANSLATING)
    corpus: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Reject options that contradict each other, whatever the model."""
        check(bool(self.workdir) and all(self.workdir), "--workdir is missing; set it, for example --workdir=runs/demo")
        for name in ("nbest", "batch_size", "batch_tokens", "window"):
            check(getattr(self, name) >= 1, f"--{name} is {getattr(self, name)}: use 1 or more")
        check(self.show >= 0, f"--show is {self.show}: use 0 or more")
        check(
            not (self.split and (self.input != "-" or self.reference)),
            "--split provides its own source and reference; leave out --input and --reference",
        )
        check(
            self.split is not None or not self.corpus,
            f"--config.{self.corpus[0][0] if self.corpus else ''} without --split: the run's corpus is read only with "
            "--split; leave it out",
        )
        check(
            not self.unk_dictionary or self.replace_unk,
            "--unk_dictionary without --replace_unk: words are replaced only with --replace_unk; set both",
        )
        check(
            self.nbest == 1 or self.format != "text",
            f"--nbest={self.nbest} with --format=text: text has one line per source line; use --format=json or fairseq",
        )
        check(
            not self.resume or self.output != "-",
            "--resume without --output: what went to standard output cannot be read back; set --output=FILE",
        )
        check(
            not self.output.endswith(".gz"),
            f"--output={self.output}: the output is not compressed; leave out --output and append | gzip > FILE.gz",
        )
        check(all(self.reference), "--reference contains an empty file name; use --reference=FILE, or A,B for several")
        self._check_files()
        for given, missing in (("lm", "lm_weight"), ("lm_weight", "lm")):
            has = {"lm": bool(self.lm), "lm_weight": "lm_weight" in self.search}
            check(
                has[missing] or not has[given],
                f"--{given} without --{missing}: a language model and its weight go together; set both, for example "
                "--lm=runs/lm --lm_weight=0.2",
            )
        check(
            self.seed is None or 0 <= self.seed < 2**32,
            f"--seed={self.seed}: expected an integer between 0 and 4294967295",
        )
        self._check_alone(
            "--score",
            bool(self.score),
            ("prefix", "constraints", "nbest", "replace_unk", "reference", "split", "show", "seed", "shortlist"),
            "given translations are scored, and nothing is searched or compared",
        )
        self._check_alone(
            "--interactive",
            self.interactive,
            ("input", "output", "reference", "split", "show", "resume", "score", "prefix", "constraints")
            + ("batch_size", "batch_tokens", "window"),
            "lines are read from the terminal and answered there",
        )
        unused = [name for name in self.search if name not in _SCORING] if self.score else []
        check(
            not unused,
            f"--score with {flags(unused)}: given translations are scored, and nothing is searched; leave one out",
        )
        for name in ("metrics", "bleu_tokenize"):
            check(
                not getattr(self, name) or bool(self.reference or self.split),
                f"--{name} without --reference: there is nothing to compare with; set --reference=FILE or --split",
            )

    @property
    def input_name(self) -> str:
        """The input, for messages."""
        return name_of(self.input)

    @property
    def runs(self) -> list[tuple[str, str]]:
        """(flag, workdir) of each run that is used."""
        return [("--workdir", each) for each in self.workdir] + ([("--lm", self.lm)] if self.lm else [])

    def resolve(self, own: SearchConfig, *, attends: bool = True) -> SearchConfig:
        """Return the run's search options, overridden by the given ones. Sampling draws `nbest` samples by default.

        Args:
          own: search options of the run.
          attends: whether its model has attention weights.

        Raises:
          UserError: invalid values, or options that contradict them.
        """
        values = dict(self.search)
        if values.get("sampling") and "beam_size" not in values:
            values["beam_size"] = self.nbest
        cfg = overridden(own, values, given=self.search, attends=attends)
        check(
            self.nbest <= cfg.beam_size,
            f"--nbest={self.nbest} with a beam_size of {cfg.beam_size}: a search returns at most beam_size hypotheses; "
            "raise --beam_size",
        )
        for name, given in (("sampling", cfg.sampling), ("diverse_groups", cfg.diverse_groups > 1)):
            check(
                not (given and self.constraints),
                f"--constraints with --{name}: only plain beam search can enforce phrases; leave one out",
            )
        check(
            self.seed is None or cfg.sampling,
            f"--seed={self.seed} without --sampling: beam search draws no random numbers; leave it out",
        )
        check(
            not (self.shortlist and cfg.sampling),
            "--shortlist with --sampling: samples are drawn from the whole vocabulary; leave one out",
        )
        check(
            attends or not self.replace_unk,
            "--replace_unk with a model without attention: nothing shows which source word an unknown word stands for; "
            "leave it out",
        )
        return cfg

    def _check_alone(self, flag: str, given: bool, others: Iterable[str], why: str) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in others:
            if given and getattr(self, name) != defaults[name]:
                raise UserError(f"{flag} with --{name}: {why}; leave one out")

    def _check_files(self) -> None:
        """Check that standard input is read only once, and that no input file is also the output.

        This includes files that standard input or standard output is redirected to.
        """
        given = [(name, getattr(self, name)) for name in READ] + [("reference", path) for path in self.reference]
        # a language model scores without an input, and --split has its own; read_work knows the model
        no_input = self.split is not None or is_stdin(self.score)
        twice = [f"--{name}" for name, path in given if is_stdin(path) and not (name == "input" and no_input)]
        check_read_once(twice)
        target = Path("/dev/stdout" if self.output == "-" else self.output)
        what = "standard output" if self.output == "-" else f"--output={self.output}"
        for name, path in given:
            source = Path("/dev/stdin" if path == "-" and not self.split else path)
            read = path != "" and source.is_file() and target.is_file()
            check(
                not (read and source.samefile(target)) and not (path == self.output and scheme_of(path)),
                f"{what} is the file of --{name}, which would be overwritten; choose another file",
            )
