"""Jobs: what decoding does with the lines of a file, or with those that are typed, for each kind of model."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.config import LARGEST, check, to_dict
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.text import visible
from convs2s_jax.data.text_files import name_of, read_lines
from convs2s_jax.metrics import labels, scoring
from convs2s_jax.search import keys
from convs2s_jax.search.batching import Batching, default_window
from convs2s_jax.search.shortlist import fixed_sizes
from convs2s_jax.training.run import run_folder
from convs2s_jax.translation import arguments, shortlists, trained
from convs2s_jax.translation.classifier import Labelled, from_trained
from convs2s_jax.translation.jobs.formats import FORMATS, LABEL_FORMATS, Format
from convs2s_jax.translation.jobs.options import READ, Options
from convs2s_jax.translation.jobs.output import Dependencies
from convs2s_jax.translation.jobs.reading import Reader, Rows, Text, count
from convs2s_jax.translation.lines import LoadedModel, TextRequest, translate
from convs2s_jax.translation.results import Result
from convs2s_jax.translation.trained import Trained
from convs2s_jax.translation.translator import Translator, fuse, load, precomputed

WIDTH = 64
"""Typed sources of up to this many tokens, including the end symbol, share the programs compiled before the first."""
FLAGS = ("format", "batch_size", "batch_tokens")
"""Options of every kind of model that affect the bytes. Batching options affect the last digits of scores."""
Progress = Callable[[int], None]


class _Lines:
    """The lines to work on, with the options.

    Attributes:
      name: name of the source, for messages.
      texts: the texts that are read side by side, by role: the source ("input") first. Empty for typed lines.
      style: how results are written and read back.
      lines: number of lines of each; None if it is not known.
      whole: what is recorded of the texts as a whole for each part of an output (`count`).
      size: number of lines in a window.
      compares: whether `note` needs the texts of results.
    """

    style: Format

    def __init__(self, options: Options, tell: Tell) -> None:
        """Read the model. Raises UserError if it cannot be read, or does not go with the options and files."""
        self.options, self.tell = options, tell
        self.name, self.texts = name_of(options.input), dict[str, Text]()
        self.lines: int | None = None
        self.whole = dict[str, Any]()
        devices = len(jax.local_devices())
        self.size = min(options.window or default_window(options.batch_size, devices), LARGEST)
        self._shown, self.compares = 0, options.show > 0
        self._reader: Reader | None = None
        for path in (*(getattr(options, name) for name in READ), *options.reference):
            if path not in ("", "-"):  # before the model is loaded
                try:
                    os.stat(path)
                except OSError as error:
                    listed = len(options.reference) > 1 and path in options.reference
                    hint = "; a comma in --reference separates files" if listed else ""
                    raise UserError(f"{path} cannot be read: {error.strerror}; choose another file{hint}") from error

    def show(self, texts: Sequence[str], rows: Rows) -> None:
        """Print the first texts with their sources and references."""
        count = max(0, self.options.show - self._shown)
        for i, (source, text) in enumerate(zip(rows["input"][:count], texts, strict=False)):
            self.tell(f"  source      {source}\n  output      {text}")
            self.tell(f"  reference   {rows['reference'][i]}\n" if "reference" in rows else "")
            self._shown += 1

    def take(self, what: str, model: LoadedModel | Trained) -> None:
        """Set the source, and references: those of a split of the run, or of files. `what` is one, for messages.

        Raises:
          UserError: the numbers of lines differ, or as `trained.read_split`.
        """
        options = self.options
        own = "the reference" if options.format == "fairseq" else ""  # the only format that has it
        source: str | Sequence[str] = options.input
        if options.split:
            known = model.cfg, model.vocabularies, options.split, model.splits
            split = trained.read_split(*known, options.workdir[0], tell=self.tell, places=options.corpus)
            self.name = options.split
            source, self.texts["reference"] = split.src, Text(split.tgt, self.name, what, own)
        self.texts = {"input": Text(source, self.name, label="the input"), **self.texts}
        for i, path in enumerate(options.reference):
            self.texts[f"reference {i}" if i else "reference"] = Text(path, name_of(path), what, "" if i else own)
        self.lines, self.whole = count([*self.texts.values()])
        self.compares |= "reference" in self.texts

    def read(self, begin: int, end: int | None) -> Reader:
        """Return a reader of lines from `begin` to before `end`.

        It is the one returned before if that is at its end: a process that decodes parts in order reads the texts once.
        """
        if self._reader is None or not self._reader.end == self._reader.line <= begin:
            self._reader = Reader(self.texts)
        self._reader.restrict(begin, end)
        return self._reader

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
        self._request = dataclasses.replace(self._request, batching=self.batching)
        own = translator.cfg.training
        self._scorer = scoring.Scorer(options.metrics or own.metrics, options.bleu_tokenize or own.bleu_tokenize)
        self._find()

    def _find(self) -> None:
        """Find the source, and the files with a line for each of its lines. Check those that can be read again."""
        options, translator = self.options, self._translator
        check(
            translator.reads_source or not options.split,
            f"--split={options.split} with a language model: it reads no source; score texts with --score=FILE",
        )
        roles = {
            "score": "translation to score",
            "prefix": "prefix (an empty one requires nothing)",
            "constraints": "constraints (an empty line requires nothing)",
        }
        for role, what in roles.items():
            if path := getattr(options, role):
                self.texts[role] = Text(path, name_of(path), what, f"the file of --{role}")
        if options.score and not translator.reads_source and options.input == "-":
            self.name = "no source"
            self.lines, self.whole = count([*self.texts.values()])
        else:
            self.take("reference", translator)
        required = not translator.reads_source or any(role in self.texts for role in roles)
        if required and not options.parts and all(text.again for text in self.texts.values()):
            rows = Reader(self.texts)
            while window := rows.window(self.size):
                self._check(self._asked(window, rows.line))

    def _asked(self, rows: Rows, end: int) -> TextRequest:
        """Return the request for the lines of a window; `end` is the number of the line after it."""
        lines = rows["input"] if "input" in rows else [""] * len(rows["score"])
        wanted = rows.get("constraints")
        return dataclasses.replace(
            self._request,
            lines=lines,
            targets=rows.get("score"),
            prefix=rows.get("prefix"),
            constraints=None if wanted is None else phrases_of(wanted),
            first=end - len(lines),
        )

    def _check(self, request: TextRequest) -> None:
        """Raise UserError for lines that the model cannot translate or score as required."""
        options, translator = self.options, self._translator
        for number, line in enumerate(request.lines if not translator.reads_source else (), request.first + 1):
            check(
                not visible(line),
                f"{self.name}, line {number} is not empty: a language model reads no source and writes one text per "
                "empty line; use --prefix for the first words of texts, and --score=FILE to score given ones",
            )
        arguments.check_required(translator, request, names=(options.prefix, options.constraints))
        if request.targets is not None:
            arguments.check_targets(translator, options.score, request.targets, request.first)

    def window(self, rows: Rows, end: int, progress: Progress) -> list[Result]:
        """Return the results of a window of lines, which ends before line `end`.

        `progress` gets the numbers of lines that were done.
        """
        request = self._asked(rows, end)
        self._check(request)
        key = keys.for_search(request.search, self.options.seed or 0, range(request.first, end))
        found = translate(self._translator, dataclasses.replace(request, key=key), progress=progress)
        if "reference" in rows:
            found = [dataclasses.replace(one, reference=rows["reference"][i]) for i, one in enumerate(found)]
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

    def note(self, texts: Sequence[str], rows: Rows) -> None:
        """Count the best texts of the results of a window for the scores."""
        self.show(texts, rows)
        if "reference" in rows:
            self._scorer.add(texts, [lines for role, lines in rows.items() if role.startswith("reference")])

    def report(self) -> None:
        """Print scores of all texts that were noted, if there are references."""
        if "reference" in self.texts:
            self.tell(scoring.report(self._scorer.scores()))
            if hint := self._scorer.hint("--bleu_tokenize"):
                self.tell(hint)

    @property
    def dependencies(self) -> Dependencies:
        """What the bytes of the output depend on, except for the lines that are read."""
        options, translator, request = self.options, self._translator, self._request
        dictionary, few = request.unk_dictionary, translator.shortlist
        return {
            "--checkpoint": translator.steps,
            "--dtype": translator.cfg.model.dtype,
            "--int8": options.int8,
            **{f"--{name}": getattr(options, name) for name in (*FLAGS, "nbest", "replace_unk")},
            "--window": self.size,
            **{f"--{name}": value for name, value in to_dict(request.search).items()},
            "--seed": options.seed or 0,
            "the model": translator.fingerprints,
            "the file of --shortlist": None if few is None else checksum(few.always, few.words, few.offsets),
            "the file of --unk_dictionary": None if dictionary is None else checksum(str(dictionary).encode()),
        }


class Labelling(_Lines):
    """Label lines with a classifier."""

    def __init__(self, options: Options, tell: Tell) -> None:
        """Load the classifier, and read the files."""
        _check_labelling(options)
        super().__init__(options, tell)
        run = trained.restore(Path(options.workdir[0]), options.checkpoint, options.dtype, tell)
        self._run, self._classifier, self._pairs = run, from_trained(run), labels.Pairs()
        self.style = LABEL_FORMATS[options.format]
        if not options.interactive:
            self.take("label", run)

    def window(self, rows: Rows, end: int, progress: Progress) -> list[Labelled]:
        """Return the results of a window of lines; arguments are as in `Translation.window`."""
        lines = rows["input"]
        return self._classifier.label(lines, first=end - len(lines), batching=self.batching, progress=progress)

    def answer(self, number: int, line: str) -> Labelled:
        """Return the result of a typed line; numbers start at 0."""
        return self._classifier.label([line], first=number, batching=Batching(size=1, min_width=WIDTH))[0]

    @property
    def dependencies(self) -> Dependencies:
        """What the bytes of the output depend on, except for the lines that are read."""
        return {
            "--checkpoint": self._run.steps,
            "--dtype": self._run.cfg.model.dtype,
            **{f"--{name}": getattr(self.options, name) for name in FLAGS},
            "--window": self.size,
            "the model": self._run.fingerprint,
        }

    def note(self, texts: Sequence[str], rows: Rows) -> None:
        """Count the most probable labels of a window for the scores."""
        self.show(texts, rows)
        if "reference" in rows:
            self._pairs.update(zip(texts, (visible(line).strip() for line in rows["reference"]), strict=True))

    def report(self) -> None:
        """Print scores of all labels that were noted, if there are references."""
        if pairs := self._pairs:
            self.tell(f"accuracy    {labels.accuracy(pairs):6.2f}  % of {counted(pairs.total(), 'text')}")
            self.tell(f"macro F1    {labels.macro_f1(pairs):6.2f}")
            for name, value in labels.f1(pairs).items():
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
