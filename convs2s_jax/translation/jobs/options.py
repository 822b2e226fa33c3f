"""The options of decoding other than those of the search, and their consistency checks."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.jobs.output import check_not_overwriting

if TYPE_CHECKING:
    from convs2s_jax.translation.lines import LoadedModel

TRANSLATING = MappingProxyType({"translating": True})
"""Metadata of options that do not apply to labelling."""
STDIN = ("-", "/dev/stdin", "/dev/fd/0")
READ = ("input", "prefix", "constraints", "score", "unk_dictionary", "shortlist")
"""Options for a single file to read; --reference accepts several."""
_SCORING = {field.name for field in dataclasses.fields(SearchConfig) if "scoring" in field.metadata}
_WITHOUT = (
    ("split", ("input", "reference"), "it brings its own source and reference"),
    (
        "score",
        ("prefix", "constraints", "nbest", "replace_unk", "reference", "split", "show", "seed", "shortlist")
        + tuple(field.name for field in dataclasses.fields(SearchConfig) if field.name not in _SCORING),
        "given translations are scored, and nothing is searched or compared",
    ),
    ("parts", ("resume",), "parts are always continued"),
    (
        "parts",
        ("reference", "split", "show"),
        "scores are those of the whole: join the parts with convs2s merge, then use --resume in place of --parts",
    ),
    (
        "interactive",
        ("input", "output", "reference", "split", "show", "resume", "parts", "score", "prefix", "constraints")
        + ("batch_size", "batch_tokens", "window"),
        "lines are read from the terminal and answered there",
    ),
)
"""(option, others that cannot be combined with it, why)."""
_NEEDS = (
    ("unk_dictionary", ("replace_unk",), "words are replaced only with it"),
    ("parts", ("output",), "parts are files"),
    ("parts", ("input", "score"), "each process reads the text"),
    ("engine", ("parts",), "it divides the work by parts"),
    ("resume", ("output",), "what went to standard output cannot be read back"),
    ("metrics", ("reference", "split"), "there is nothing to compare with"),
    ("bleu_tokenize", ("reference", "split"), "there is nothing to compare with"),
    ("lm", ("lm_weight",), "a language model and its weight go together, as in --lm=runs/lm --lm_weight=0.2"),
    ("lm_weight", ("lm",), "a language model and its weight go together, as in --lm=runs/lm --lm_weight=0.2"),
)
"""(option, others of which one has to be set too, why)."""


def overridden(own: SearchConfig, values: Mapping[str, Any], *, attends: bool = True) -> SearchConfig:
    """Return a run's search options with the given fields changed by flags.

    Args:
      own: the search options of the run.
      values: the fields to change.
      attends: whether the model has attention weights.

    Raises:
      UserError: an invalid value, fields that contradict each other, or options that have no effect or that the model
        does not support; the message begins with a flag.
    """
    try:
        search = dataclasses.replace(own, **values)
    except UserError as error:
        raise UserError(f"--{error}") from None
    for name, rule, why in (
        ("stop", not search.sampling, "with --sampling"),
        ("length_penalty", search.normalize, "with --nonormalize"),
        ("length_penalty_kind", search.normalize, "with --nonormalize"),
    ):
        check(name not in values or rule, f"--{name} {why} has no effect: leave one out")
    check(
        attends or search.coverage_penalty == 0,
        f"--coverage_penalty is {search.coverage_penalty} and the model has no attention to cover the source; use "
        "--coverage_penalty=0",
    )
    return search


def plain_search(model: "LoadedModel", workdir: str, values: Mapping[str, Any], what: str) -> SearchConfig:
    """Return the options of a search that is compiled once: beam search by a translation model alone.

    Args:
      model: the model, with the search options of its run.
      workdir: its workdir, for messages.
      values: fields that flags change.
      what: what uses the search, for messages: "a server".

    Raises:
      UserError: as in `overridden`; or the model reads no source, samples, or needs a language model.
    """
    check(model.reads_source, f"--workdir={workdir} is a language model, but {what} needs a model that translates")
    search = overridden(model.cfg.search, values, attends=model.attends)
    check(not search.sampling, f"--sampling: {what} uses beam search; use --nosampling")
    check(search.lm_weight == 0, f"--lm_weight is {search.lm_weight}, but {what} has no language model; use 0")
    return search


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What to decode, with which model, and how to write the results. Each field is a flag (docs/decoding.md).

    Workdirs and files to read may be in object stores (gs://BUCKET/NAME, s3://BUCKET/NAME; docs/object-stores.md).

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
      parts: decode the input in this many parts, OUTPUT.part-00000-of-00016 and so on, which any number of processes
        that run this command share; `convs2s merge` joins them. The output may be in an object store.
      engine: what runs the processes of --parts; ray is a cluster of Ray, or this machine. By default, nothing does:
        start them yourself.
      interactive: translate each line as it is typed.
      reference: file of reference translations, or of correct labels; several (A,B) are alternative references. Scores
        are printed to standard error.
      metrics: metrics to compute, from bleu, chrf, ter, exact, rouge and d2l_bleu; by default, those of the run.
      bleu_tokenize: sacreBLEU's tokeniser; by default, the run's.
      split: translate and score this split of the run's corpus, instead of an input and a reference.
      show: print this many sources with their translations and references.
      batch_size: maximum number of sentences in a batch.
      batch_tokens: maximum number of source tokens in a batch.
      window: number of lines to translate before their results are written; by default 4096, on several devices 8192
        for each, and more if batch_size is above 64.
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
    parts: int = 0
    engine: Literal["ray"] | None = None
    interactive: bool = False
    reference: tuple[str, ...] = ()
    metrics: tuple[str, ...] = dataclasses.field(default=(), metadata=TRANSLATING)
    bleu_tokenize: str | None = dataclasses.field(default=None, metadata=TRANSLATING)
    split: Literal["train", "valid", "test"] | None = None
    show: int = 0
    batch_size: int = 64
    batch_tokens: int = 16384
    window: int | None = None
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
        for name in ("nbest", "batch_size", "batch_tokens", "window", "show", "parts"):
            value, least = getattr(self, name), int(name not in ("show", "parts"))
            check(value is None or value >= least, f"--{name} is {value}: use {least} or more")
        given = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
        given += self.search
        for name, others, why in _WITHOUT:
            both = [f"--{other}" for other in others if name in given and other in given]
            check(not both, f"--{name} with {', '.join(both)}: {why}; leave one out")
        for name, others, why in _NEEDS:
            missing = name in given and not {*others} & {*given}
            check(not missing, f"--{name} without {' or '.join(f'--{other}' for other in others)}: {why}; set both")
        check(
            self.split is not None or not self.corpus,
            f"--config.{self.corpus[0][0] if self.corpus else ''} without --split: the run's corpus is read only with "
            "--split; leave it out",
        )
        check(
            self.nbest == 1 or self.format != "text",
            f"--nbest={self.nbest} with --format=text: text has one line per source line; use --format=json or fairseq",
        )
        check(
            not self.output.endswith(".gz"),
            f"--output={self.output}: the output is not compressed; leave out --output and append | gzip > FILE.gz",
        )
        check(
            self.parts > 0 or not scheme_of(self.output),
            f"--output={self.output}: an output in an object store is written in parts; set --parts=N, or use a file",
        )
        check(all(self.reference), "--reference contains an empty file name; use --reference=FILE, or A,B for several")
        check(
            self.seed is None or 0 <= self.seed < 2**32,
            f"--seed={self.seed}: expected an integer between 0 and 4294967295",
        )
        files = [(name, getattr(self, name)) for name in READ if name != "input" or self.split is None]
        files += [("reference", path) for path in self.reference]
        twice = [f"--{name}" for name, path in files if path in STDIN]
        check(
            len(twice) < 2,
            f"{' and '.join(twice)} read standard input, which can be read only once; use files instead",
        )
        for name, path in files:
            check_not_overwriting(self.output, ["/dev/stdin" if path == "-" else path], f"the file of --{name}")

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
        if values.get("sampling"):
            values.setdefault("beam_size", self.nbest)
        cfg = overridden(own, values, attends=attends)
        check(
            self.nbest <= cfg.beam_size,
            f"--nbest={self.nbest} with a beam_size of {cfg.beam_size}: a search returns at most beam_size hypotheses; "
            "raise --beam_size",
        )
        check(
            not (cfg.sampling and self.constraints),
            "--constraints with --sampling: only beam search can enforce phrases; leave one out",
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
