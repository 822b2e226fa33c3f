"""Interactive decoding: print the translation or label of each sentence that is typed."""

import contextlib
import itertools
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from convs2s_jax.core import guard
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.data.text_files import without_end
from convs2s_jax.search import keys
from convs2s_jax.search.batching import Batching
from convs2s_jax.search.shortlist import fixed_sizes
from convs2s_jax.training.run import run_folder
from convs2s_jax.translation import arguments
from convs2s_jax.translation.jobs import decoding, inputs, labelling
from convs2s_jax.translation.jobs.formats import FORMATS
from convs2s_jax.translation.jobs.job import MakePrompt, Prompt
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.lines import TextRequest, translate
from convs2s_jax.translation.results import Result

WIDTH = 64
"""Sources of up to this many tokens, including the end symbol, use the programs compiled before the first prompt."""

PROMPT = "> "


def interact(options: Options, *, tell: Tell) -> None:
    """Translate or label standard input line by line until it ends. Answers are printed before the next line is read.

    Programs for sources of up to `WIDTH` tokens are compiled before the first prompt. Each new width beyond that costs
    another compilation.

    Args:
      options: see `Options`.
      tell: receives warnings.

    Raises:
      UserError: the input is invalid.
      KeyboardInterrupt: the user interrupted decoding.
    """
    guard.check_open(sys.stdin)
    guard.check_open(sys.stdout)
    prompt = PROMPTS[run_folder.load_config(Path(options.workdir[0])).model.kind](options, tell)
    tell("compiling ...")
    prompt.compile()
    tell("ready: type one sentence per line; Ctrl-D ends" if sys.stdin.isatty() else "ready")
    try:
        for number, line in enumerate(typed_lines(tell)):
            result = prompt.answer(number, line)
            _print(prompt.style.render(result))
            prompt.warn([result])
    except KeyboardInterrupt:
        tell("")
        raise


def _print(answer: str) -> None:
    """Print an answer as UTF-8, as in files. On a terminal, use its encoding and escape what it does not contain."""
    if sys.stdout.isatty():
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(answer.encode(encoding, "backslashreplace").decode(encoding))
    else:
        sys.stdout.buffer.write(answer.encode())
    sys.stdout.flush()


def translation(options: Options, tell: Tell) -> Prompt[Result]:
    """Return the job of translating typed lines."""
    translator = decoding.translator_of(options, tell)
    check(
        translator.reads_source,
        f"--interactive with a language model: --workdir={options.workdir[0]} reads no source; use --sampling with a "
        "file of empty lines",
    )
    search = options.resolve(translator.cfg.search, attends=translator.attends)
    arguments.check_memory(translator, search, rows=1)
    dictionary = inputs.read_dictionary(options.unk_dictionary) if options.unk_dictionary else None
    sizes = fixed_sizes(translator.shortlist, 1)

    def answer(number: int, line: str, word_sizes: tuple[int, ...] = sizes) -> Result:
        request = TextRequest(
            search,
            [line],
            nbest=options.nbest,
            replace_unk=options.replace_unk,
            unk_dictionary=dictionary,
            attention=FORMATS[options.format].alignments,
            key=keys.for_search(search, options.seed or 0, [number]),
            first=number,
            batching=Batching(size=1, min_width=WIDTH, word_sizes=word_sizes),
        )
        return translate(translator, request)[0]

    def compile() -> None:
        for i in range(max(1, len(sizes))):
            answer(0, "1", sizes[i:])  # each size is once the first in which the words fit

    return Prompt(FORMATS[options.format], compile, answer, partial(decoding.warn, "standard input", tell=tell))


PROMPTS: Mapping[str, MakePrompt] = MappingProxyType(
    {"encoder_decoder": translation, "classifier": partial(labelling.prompt, width=WIDTH)}
)
"""The job factory for each kind of model."""


def typed_lines(tell: Tell) -> Iterator[str]:
    """Yield lines as they arrive, without a byte order mark. A terminal shows a prompt, with readline if available.

    A line of a terminal that is not UTF-8 is reported and left out; in a file it is an error.
    """
    for number in itertools.count(1):
        try:
            line = (_prompted() if sys.stdin.isatty() else sys.stdin.buffer.readline()).decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"standard input, line {number}: byte 0x{error.object[error.start]:02x} is not UTF-8"
            if not sys.stdin.isatty():
                raise UserError(f"{what}; convert it, for example with iconv -t utf-8") from error
            tell(f"{what}; type the sentence again, or set LANG to the encoding of the terminal")
            continue
        except OSError as error:  # nohup makes it unreadable, for example
            raise UserError(f"standard input cannot be read: {error.strerror}; redirect a file to it") from error
        if not line:
            return
        yield without_end(line.removeprefix("\ufeff") if number == 1 else line)


def _prompted() -> bytes:
    """Read a line from a terminal, with its line end; b"" at the end of input. Prompts never mix with the answers.

    In the locales C and POSIX, Python reads bytes that are not UTF-8 as surrogates.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (`input` uses it where input and output are terminals)
    try:
        if sys.stdout.isatty():
            return f"{input(PROMPT)}\n".encode("utf-8", "surrogateescape")
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
        return sys.stdin.readline().encode("utf-8", "surrogateescape")
    except EOFError:
        sys.stdout.write("\n")
        return b""
