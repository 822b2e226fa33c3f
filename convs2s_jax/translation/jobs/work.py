"""The lines of a file to translate or score, and the per-line requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.metrics import scoring
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation import fit
from convs2s_jax.translation.jobs import inputs, resuming
from convs2s_jax.translation.jobs.options import Options, check_read_once, is_stdin
from convs2s_jax.translation.translator import Translator


@dataclass(frozen=True)
class Work:
    """The lines of a file and the per-line requests.

    Attributes:
      name: name of the source, for messages.
      lines: source lines.
      references: one or several lists, each with one text per line; None for no scores.
      prefix: for each line, words that its translation must begin with.
      constraints: for each line, phrases that its translation must contain.
      targets: given translations to score, instead of a search.
      dictionary: source word -> target word, to replace unknown words.
    """

    name: str
    lines: Sequence[str]
    references: Sequence[Sequence[str]] | None = None
    prefix: Sequence[str] | None = None
    constraints: Sequence[Sequence[str]] | None = None
    targets: Sequence[str] | None = None
    dictionary: Mapping[str, str] | None = None


def read_work(options: Options, translator: Translator, search: SearchConfig, tell: Tell) -> Work:
    """Read and check the source lines and the files parallel to them."""
    if options.split and not translator.reads_source:
        raise UserError(
            f"--split={options.split} with a language model: it reads no source, so there is nothing to translate; "
            "score texts with --score=FILE"
        )
    if options.split:
        text = inputs.read_split(options, translator, tell)
        work = Work(options.split, text.src, [text.tgt])
    elif options.score and not translator.reads_source and options.input == "-":
        given = read_lines(options.score)  # once: it may be a pipe
        work = Work("no source", [""] * len(given), targets=given)
    else:
        if is_stdin(options.score) and is_stdin(options.input):
            check_read_once(["--input", "--score"])
        work = Work(options.input_name, read_lines(options.input))
    if not translator.reads_source:
        inputs.check_empty(work.name, work.lines)

    def parallel(path: str, what: str) -> list[str] | None:
        return inputs.read_parallel(path, work.lines, name=work.name, what=what) if path else None

    references = [found for path in options.reference if (found := parallel(path, "reference")) is not None]
    prefix = parallel(options.prefix, "prefix (an empty one requires nothing)")
    wanted = parallel(options.constraints, "constraints (an empty line requires nothing)")
    constraints = None if wanted is None else inputs.phrases_of(wanted)
    targets = parallel(options.score, "translation to score") if work.targets is None else work.targets
    if references or work.references:
        own = translator.cfg.training
        scoring.check_metrics(options.metrics or own.metrics, options.bleu_tokenize or own.bleu_tokenize)
    if references and not work.lines:
        raise UserError(f"{work.name} is empty: there are no sentences to score; use sentences with their references")
    fit.check_fit(
        translator,
        search,
        work.lines,
        prefix=None if prefix is None else (options.prefix, prefix),
        constraints=None if constraints is None else (options.constraints, constraints),
    )
    if targets is not None:
        fit.check_targets(translator, options.score, targets)
    return replace(
        work,
        references=references or work.references,
        prefix=prefix,
        constraints=constraints,
        targets=targets,
        dictionary=inputs.read_dictionary(options.unk_dictionary) if options.unk_dictionary else None,
    )


def dependencies_of(
    options: Options, translator: Translator, search: SearchConfig, work: Work
) -> resuming.Dependencies:
    """Return everything that the bytes of the output depend on: flags, model and texts."""
    constraints, dictionary, shortlist = work.constraints, work.dictionary, translator.shortlist
    texts = {
        "the input": work.lines,
        "the reference": work.references[0] if work.references and options.format == "fairseq" else None,
        "the file of --prefix": work.prefix,
        "the file of --constraints": None if constraints is None else ["\t".join(phrases) for phrases in constraints],
        "the file of --score": work.targets,
        "the file of --unk_dictionary": None
        if dictionary is None
        else ["\t".join(pair) for pair in dictionary.items()],
    }
    return {
        "--checkpoint": translator.steps,
        "--dtype": translator.cfg.model.dtype,
        **({"--int8": True} if options.int8 else {}),  # so that older outputs, without the flag, can be resumed
        **resuming.flags_of(options, (*resuming.FLAGS, "nbest", "replace_unk")),
        **{f"--{name}": value for name, value in to_dict(search).items()},
        "--seed": options.seed or 0,
        "the model": translator.fingerprints,
        "the file of --shortlist": None
        if shortlist is None
        else checksum(shortlist.always, shortlist.words, shortlist.offsets),
        **{name: None if lines is None else resuming.digest_of(lines) for name, lines in texts.items()},
    }
