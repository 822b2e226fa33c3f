"""Jobs: what decoding does with the lines of a file, or with those that are typed, for each kind of model."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.config import LARGEST, check, to_dict
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.text import visible
from convs2s_jax.data import lines as stored
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.text_files import name_of, read_lines
from convs2s_jax.metrics import labels, scoring
from convs2s_jax.search import keys
from convs2s_jax.search.batching import Batching
from convs2s_jax.search.shortlist import fixed_sizes
from convs2s_jax.training.run import run_folder
from convs2s_jax.translation import arguments, shortlists, trained
from convs2s_jax.translation.classifier import Labelled, from_trained
from convs2s_jax.translation.jobs.formats import FORMATS, LABEL_FORMATS, Format
from convs2s_jax.translation.jobs.options import READ, Options
from convs2s_jax.translation.jobs.output import Dependencies, digest_of
from convs2s_jax.translation.lines import LoadedModel, TextRequest, translate
from convs2s_jax.translation.results import Result
from convs2s_jax.translation.trained import Trained
from convs2s_jax.translation.translator import Translator, fuse, load, precomputed

WIDTH = 64
"""Typed sources of up to this many tokens, including the end symbol, share the programs compiled before the first."""
FLAGS = ("format", "batch_size", "batch_tokens", "window")
"""Options of every kind of model that affect the bytes. Batching options affect the last digits of scores."""
Progress = Callable[[int], None]


class _Lines:
    """The lines to work on, with the options.

    Attributes:
      name: name of the source, for messages.
      lines: source lines of a file; empty for typed lines.
      style: how results are written and read back.
    """

    lines: Sequence[str]
    style: Format

    def __init__(self, options: Options, tell: Tell) -> None:
        """Read the model and the files. Raises UserError if they cannot be read, or do not go together."""
        self.options, self.tell = options, tell
        self.name, self.lines = name_of(options.input), []
        for path in (*(getattr(options, name) for name in READ), *options.reference):
            if path not in ("", "-"):  # before the model is loaded
                try:
                    os.stat(path)
                except OSError as error:
                    listed = len(options.reference) > 1 and path in options.reference
                    hint = "; a comma in --reference separates files" if listed else ""
                    raise UserError(f"{path} cannot be read: {error.strerror}; choose another file{hint}") from error

    def show(self, texts: Sequence[str], references: Sequence[str] | None) -> None:
        """Print the first texts with their sources and references."""
        for i, (source, text) in enumerate(zip(self.lines[: self.options.show], texts, strict=False)):
            self.tell(f"  source      {source}\n  output      {text}")
            self.tell(f"  reference   {references[i]}\n" if references else "")

    def read_split(self, model: LoadedModel | Trained) -> ParallelText:
        """Read the requested split of the first run's corpus (`trained.read_split`)."""
        options, split = self.options, str(self.options.split)
        self.name = split
        return trained.read_split(
            model.cfg,
            model.vocabularies,
            split,
            model.splits,
            options.workdir[0],
            tell=self.tell,
            places=options.corpus,
        )

    def read_references(self, what: str, own: Sequence[str] | None) -> list[Sequence[str]]:
        """Return the references of a split, and those that --reference names; `what` is one, for messages."""
        found: list[Sequence[str]] = [] if own is None else [own]
        found += [read_parallel(path, self.lines, name=self.name, what=what) for path in self.options.reference]
        check(bool(self.lines) or not found, f"{self.name} is empty: there is nothing to score; use lines of text")
        return found

    @property
    def batching(self) -> Batching:
        """How lines are batched."""
        return Batching(size=min(self.options.batch_size, LARGEST), tokens=min(self.options.batch_tokens, LARGEST))


class Translation(_Lines):
    """Translate lines, or score given translations."""

    def __init__(self, options: Options, tell: Tell) -> None:
        """Load the model, and read the files."""
        super().__init__(options, tell)
        self._translator = translator = load_translator(options, tell)
        search = options.resolve(translator.cfg.search, attends=translator.attends)
        self.style = FORMATS["scores" if options.score and options.format == "text" else options.format]
        self._references = list[Sequence[str]]()
        self._request = TextRequest(
            search,
            [],
            nbest=options.nbest,
            replace_unk=options.replace_unk,
            unk_dictionary=read_dictionary(options.unk_dictionary) if options.unk_dictionary else None,
            attention=self.style.alignments,
        )
        if options.interactive:
            check(
                translator.reads_source,
                f"--interactive with a language model: --workdir={options.workdir[0]} reads no source; use --sampling "
                "with a file of empty lines",
            )
            return
        self._read()

    def _read(self) -> None:
        """Read the source lines, and the files with a line for each of them."""
        options, translator, search = self.options, self._translator, self._request.search
        targets = own = None
        if options.split:
            check(
                translator.reads_source,
                f"--split={options.split} with a language model: it reads no source; score texts with --score=FILE",
            )
            text = self.read_split(translator)
            self.lines, own = text.src, text.tgt
        elif options.score and not translator.reads_source and options.input == "-":
            targets = stored.read(options.score)  # once: it may be a pipe
            self.name, self.lines = "no source", [""] * len(targets)
        else:
            self.lines = stored.read(options.input)
        for number, line in enumerate(self.lines if not translator.reads_source else (), 1):
            check(
                not visible(line),
                f"{self.name}, line {number} is not empty: a language model reads no source and writes one text per "
                "empty line; use --prefix for the first words of texts, and --score=FILE to score given ones",
            )

        def parallel(path: str, what: str) -> Sequence[str] | None:
            return read_parallel(path, self.lines, name=self.name, what=what) if path else None

        self._references = self.read_references("reference", own)
        wanted = parallel(options.constraints, "constraints (an empty line requires nothing)")
        self._request = request = dataclasses.replace(
            self._request,
            lines=self.lines,
            targets=parallel(options.score, "translation to score") if targets is None else targets,
            prefix=parallel(options.prefix, "prefix (an empty one requires nothing)"),
            constraints=None if wanted is None else phrases_of(wanted),
            key=keys.for_search(search, options.seed or 0, range(len(self.lines))),
            batching=self.batching,
        )
        arguments.check_required(translator, request, names=(options.prefix, options.constraints))
        if request.targets is not None:
            arguments.check_targets(translator, options.score, request.targets)

    def window(self, first: int, progress: Progress) -> list[Result]:
        """Return the results of the next window of lines; `progress` gets the numbers of lines that were done."""
        found = translate(self._translator, self._request.part(first, self.options.window), progress=progress)
        if self._references:
            found = [dataclasses.replace(one, reference=self._references[0][one.line]) for one in found]
        for one in found:
            if one.best.score == float("-inf"):
                self.tell(
                    f"{self.name}, line {one.line + 1}: no translation was found, because its scores are not finite or "
                    "no word is allowed"
                )
        return found

    def answer(self, number: int, line: str) -> Result:
        """Return the result of a typed line; numbers start at 0."""
        key = keys.for_search(self._request.search, self.options.seed or 0, [number])
        batching = Batching(size=1, min_width=WIDTH, word_sizes=fixed_sizes(self._translator.shortlist, 1))
        request = dataclasses.replace(self._request, lines=[line], key=key, first=number, batching=batching)
        return translate(self._translator, request)[0]

    def report(self, texts: Sequence[str]) -> None:
        """Print scores of the best text of every line, if there are references."""
        options, own = self.options, self._translator.cfg.training
        self.show(texts, self._references[0] if self._references else None)
        if self._references:
            metrics, tokenize = options.metrics or own.metrics, options.bleu_tokenize or own.bleu_tokenize
            found = scoring.score(texts, self._references, metrics=metrics, bleu_tokenize=tokenize)
            self.tell(scoring.report(found))
            if hint := scoring.hint(
                self._references[0], metrics=metrics, bleu_tokenize=tokenize, flag="--bleu_tokenize"
            ):
                self.tell(hint)

    @property
    def dependencies(self) -> Dependencies:
        """Everything that the bytes of the output depend on."""
        options, translator, request = self.options, self._translator, self._request
        constraints, dictionary, few = request.constraints, request.unk_dictionary, translator.shortlist
        texts = {
            "the input": request.lines,
            "the reference": self._references[0] if self._references and options.format == "fairseq" else None,
            "the file of --prefix": request.prefix,
            "the file of --constraints": None if constraints is None else map("\t".join, constraints),
            "the file of --score": request.targets,
            "the file of --unk_dictionary": None if dictionary is None else map("\t".join, dictionary.items()),
        }
        return {
            "--checkpoint": translator.steps,
            "--dtype": translator.cfg.model.dtype,
            "--int8": options.int8,
            **{f"--{name}": getattr(options, name) for name in (*FLAGS, "nbest", "replace_unk")},
            **{f"--{name}": value for name, value in to_dict(request.search).items()},
            "--seed": options.seed or 0,
            "the model": translator.fingerprints,
            "the file of --shortlist": None if few is None else checksum(few.always, few.words, few.offsets),
            **{name: None if lines is None else digest_of(lines) for name, lines in texts.items()},
        }


class Labelling(_Lines):
    """Label lines with a classifier."""

    def __init__(self, options: Options, tell: Tell) -> None:
        """Load the classifier, and read the files."""
        _check_labelling(options)
        super().__init__(options, tell)
        run = trained.restore(Path(options.workdir[0]), options.checkpoint, options.dtype, tell)
        self._run, self._classifier, self._right = run, from_trained(run), list[str]()
        self.style = LABEL_FORMATS[options.format]
        if options.interactive:
            return
        text = self.read_split(run) if options.split else None
        self.lines = text.src if text else stored.read(options.input)
        for right in self.read_references("label", text.tgt if text else None):
            self._right = [visible(line).strip() for line in right]

    def window(self, first: int, progress: Progress) -> list[Labelled]:
        """Return the results of the next window of lines; `progress` gets the numbers of lines that were done."""
        lines = self.lines[first : first + self.options.window]
        return self._classifier.label(lines, first=first, batching=self.batching, progress=progress)

    def answer(self, number: int, line: str) -> Labelled:
        """Return the result of a typed line; numbers start at 0."""
        return self._classifier.label([line], first=number, batching=Batching(size=1, min_width=WIDTH))[0]

    @property
    def dependencies(self) -> Dependencies:
        """Everything that the bytes of the output depend on."""
        return {
            "--checkpoint": self._run.steps,
            "--dtype": self._run.cfg.model.dtype,
            **{f"--{name}": getattr(self.options, name) for name in FLAGS},
            "the model": self._run.fingerprint,
            "the input": digest_of(self.lines),
        }

    def report(self, texts: Sequence[str]) -> None:
        """Print scores of the best text of every line, if there are references."""
        self.show(texts, self._right)
        if self._right:
            self.tell(
                f"accuracy    {labels.accuracy(texts, self._right):6.2f}  % of {counted(len(self._right), 'text')}"
            )
            self.tell(f"macro F1    {labels.macro_f1(texts, self._right):6.2f}")
            for name, value in labels.f1(texts, self._right).items():
                self.tell(f"F1          {value:6.2f}  {name}")


Job = Translation | Labelling
JOBS: Mapping[str, Callable[[Options, Tell], Job]] = MappingProxyType(
    {"encoder_decoder": Translation, "classifier": Labelling}
)
"""The job of each kind of model."""


def load_translator(options: Options, tell: Tell) -> Translator:
    """Load the model or ensemble, and the language model, given by the options, ready for decoding."""
    workdirs = [Path(workdir) for workdir in options.workdir]
    options.resolve(run_folder.load_config(workdirs[0]).search)  # so that a mistake is reported before the model loads
    translator = load(workdirs, steps=options.checkpoint, dtype=options.dtype, tell=tell, given_as="--workdir")
    if options.lm:
        lm = load(Path(options.lm), dtype=options.dtype, tell=tell, given_as="--lm")
        fused = fuse(translator, lm, names=(options.workdir[0], options.lm))
        translator = fused if options.search["lm_weight"] else translator
    if options.shortlist:
        few = shortlists.load(Path(options.shortlist), translator.vocabularies)
        translator = dataclasses.replace(translator, shortlist=few)
    return precomputed(translator, int8=options.int8)


def _check_labelling(options: Options) -> None:
    """Reject options that do not apply to labelling."""
    for name in ("workdir", "reference"):
        count = len(getattr(options, name))
        check(count < 2, f"--{name} lists {count}, but a classifier uses only one; leave out the others")
    check(
        options.format in LABEL_FORMATS,
        f"--format={options.format} is for translations only; for labels, use {' or '.join(LABEL_FORMATS)}",
    )
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if "translating" in field.metadata and value and value != field.default:
            names = ", ".join(f"--{name}" for name in (value if field.name == "search" else [field.name]))
            raise UserError(
                f"{names}: for translations only, but --workdir={options.workdir[0]} is a classifier; leave it out"
            )


def read_parallel(path: str, lines: Sequence[str], *, name: str, what: str) -> Sequence[str]:
    """Read a file with one line for each source line.

    Args:
      path: path of the file.
      lines: source lines.
      name: name of the source, for messages.
      what: what a line of the file is, for messages.

    Raises:
      UserError: the file cannot be read, or has a different number of lines.
    """
    found = stored.read(path)
    if len(found) != len(lines):
        count = counted(len(lines), "line")
        raise UserError(f"{name} has {count}, but {name_of(path)} has {len(found)}: each line needs its {what}")
    return found


def phrases_of(lines: Iterable[str]) -> list[list[str]]:
    """Return the TAB-separated phrases of each line; empty phrases are dropped."""
    return [[phrase for phrase in line.split("\t") if visible(phrase)] for line in lines]


def read_dictionary(path: str) -> dict[str, str]:
    """Read a dictionary from source to target words, with a source word, TAB, a target word on each line.

    Raises:
      UserError: a line has another form, or a source word is listed twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not visible(line):
            continue
        source, _, target = (part.strip() for part in line.partition("\t"))
        source = visible(source)
        if not source or not target or "\t" in target:
            raise UserError(f"{path}, line {number}: {line!r} is not a source word, TAB, a target word")
        if found.setdefault(source, target) != target:
            raise UserError(f"{path}, line {number}: '{source}' has another target word above; remove one of the two")
    return found
