"""What train.py and decode.py share: configuration files, overrides, and how a mistake is told."""

import errno
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags, logging

from convs2s_jax.core.config import override
from convs2s_jax.core.errors import UserError

PREFIX = "--config."
INTERRUPTED = 130
"""Exit status where the user wanted the end at once: 128 and the number of SIGINT, as shells have it."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors of a disk that is full, or a share of it."""


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separate `--config.path.to.field=value` (or with the value as the next argument) from the other arguments."""
    rest, overrides = [], []
    waiting = iter(arguments)
    for argument in waiting:
        if not argument.startswith(PREFIX):
            rest.append(argument)
            continue
        path, equals, text = argument.removeprefix(PREFIX).partition("=")
        if not equals:
            text = next(waiting, "")
        if not path or (not equals and (not text or text.startswith("--"))):
            raise UserError(f"{argument} has no value: write {PREFIX}path.to.field=value")
        overrides.append((path, text))
    return rest, overrides


def read_config(path: str, overrides: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Nested dictionaries of a configuration file's `get_config()`, overrides applied.

    Args:
      path: a Python file that defines `get_config()`, which returns dictionaries or an ml_collections ConfigDict.
      overrides: (path.to.field, text) of the command line.

    Raises:
      UserError: no such file, no `get_config`, or an error inside it, with its line.
    """
    if not Path(path).is_file():
        raise UserError(f"--config={path}: there is no such file; configurations lie in configs/")
    try:
        module = runpy.run_path(path)
        if "get_config" not in module:
            raise UserError(f"{path} defines no get_config(): a configuration file returns its values from it")
        values = module["get_config"]()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}{_line(error, path)}: {type(error).__name__}: {error}") from error
    values = values.to_dict() if hasattr(values, "to_dict") else values
    for field, text in overrides:
        values = override(values, field, text)
    return values


def _line(error: Exception, path: str) -> str:
    """Return ", line 7" of the file where the error arose in it."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f", line {lines[-1]}" if lines else ""


def run(main: Callable[[list[tuple[str, str]]], None], *, leave: Callable[[int], NoReturn] = sys.exit) -> None:
    """Run a command line: `main` gets the overrides. A user's mistake is one sentence and exit status 2.

    Args:
      main: the program.
      leave: ends the process with a status.
    """

    def fail(sentence: str) -> NoReturn:
        print(f"{Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)  # noqa: T201
        leave(2)

    def guarded(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (UserError, flags.Error) as error:
            fail(str(error))
        except KeyboardInterrupt:
            leave(INTERRUPTED)
        except BrokenPipeError:
            sys.exit(141)  # who read our output has gone, as under `head`
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            fail(f"{error}: make room and run the same command again")

    overrides: list[tuple[str, str]] = []

    def parse(arguments: Sequence[str]) -> Any:
        rest, found = guarded(lambda: split_overrides(arguments))
        overrides.extend(found)
        rest = guarded(lambda: flags.FLAGS(rest))
        if len(rest) > 1:
            guarded(lambda: _refuse(rest[1]))
        return rest

    def quiet(_: Any) -> None:
        logging.set_verbosity(logging.FATAL)  # what libraries log is not for the user; what matters they raise
        guarded(lambda: main(overrides))

    app.run(quiet, flags_parser=parse)


def _refuse(argument: str) -> None:
    raise UserError(f"{argument}: arguments are written --name=value; see --help")
