"""The lines of a file to translate or score, and the per-line requests."""

from collections.abc import Sequence
from typing import NamedTuple

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.metrics import scoring
from convs2s_jax.search import keys
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation import arguments
from convs2s_jax.translation.jobs import inputs, resuming
from convs2s_jax.translation.jobs.job import batching
from convs2s_jax.translation.jobs.options import Options, check_read_once, is_stdin
from convs2s_jax.translation.lines import TextRequest
from convs2s_jax.translation.translator import Translator


class Work(NamedTuple):
    """The lines of a file, and what to do with them.

    Attributes:
      name: name of the source, for messages.
      request: the lines, and what is asked for each of them.
      references: one or several lists, each with one text per line; None for no scores.
    """

    name: str
    request: TextRequest
    references: Sequence[Sequence[str]] | None


def read_work(
    options: Options, translator: Translator, search: SearchConfig, tell: Tell, *, attention: bool = True
) -> Work:
    """Read and check the source lines and the files parallel to them. `attention`: as in `TextRequest`."""
    name: str = options.input_name
    references: list[Sequence[str]] = []
    targets = None
    if options.split and not translator.reads_source:
        raise UserError(
            f"--split={options.split} with a language model: it reads no source, so there is nothing to translate; "
            "score texts with --score=FILE"
        )
    if options.split:
        text = inputs.read_split(options, translator, tell)
        name, lines, references = options.split, text.src, [text.tgt]
    elif options.score and not translator.reads_source and options.input == "-":
        targets = read_lines(options.score)  # once: it may be a pipe
        name, lines = "no source", [""] * len(targets)
    else:
        if is_stdin(options.score) and is_stdin(options.input):
            check_read_once(["--input", "--score"])
        lines = read_lines(options.input)
    if not translator.reads_source:
        inputs.check_empty(name, lines)

    def parallel(path: str, what: str) -> list[str] | None:
        return inputs.read_parallel(path, lines, name=name, what=what) if path else None

    references += [found for path in options.reference if (found := parallel(path, "reference")) is not None]
    wanted = parallel(options.constraints, "constraints (an empty line requires nothing)")
    request = TextRequest(
        search,
        lines,
        targets=parallel(options.score, "translation to score") if targets is None else targets,
        nbest=options.nbest,
        prefix=parallel(options.prefix, "prefix (an empty one requires nothing)"),
        constraints=None if wanted is None else inputs.phrases_of(wanted),
        replace_unk=options.replace_unk,
        unk_dictionary=inputs.read_dictionary(options.unk_dictionary) if options.unk_dictionary else None,
        attention=attention,
        key=keys.for_search(search, options.seed or 0, range(len(lines))),
        batching=batching(options),
    )
    if references:
        own = translator.cfg.training
        scoring.check_metrics(options.metrics or own.metrics, options.bleu_tokenize or own.bleu_tokenize)
    if references and not lines:
        raise UserError(f"{name} is empty: there are no sentences to score; use sentences with their references")
    arguments.check_required(translator, request, names=(options.prefix, options.constraints))
    if request.targets is not None:
        arguments.check_targets(translator, options.score, request.targets)
    return Work(name, request, references or None)


def dependencies_of(
    options: Options, translator: Translator, search: SearchConfig, work: Work
) -> resuming.Dependencies:
    """Return everything that the bytes of the output depend on: flags, model and texts."""
    request, shortlist = work.request, translator.shortlist
    constraints, dictionary = request.constraints, request.unk_dictionary
    texts = {
        "the input": request.lines,
        "the reference": work.references[0] if work.references and options.format == "fairseq" else None,
        "the file of --prefix": request.prefix,
        "the file of --constraints": None if constraints is None else ["\t".join(phrases) for phrases in constraints],
        "the file of --score": request.targets,
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
