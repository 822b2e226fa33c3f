"""Command lines: flags from the fields of records, help, configuration files and overrides."""

import contextlib
import faulthandler
import os
import runpy
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

from absl import flags

from convs2s_jax.core import checksums, files, local_copies, places
from convs2s_jax.core.config import override, read_text
from convs2s_jax.core.errors import UserError, did_you_mean, shortened
from convs2s_jax.core.fields import Field, fields_of, type_text
from convs2s_jax.core.guard import MORE_MEMORY, guard, sigterm_interrupts, silence_libraries
from convs2s_jax.core.places import scheme_of

T = TypeVar("T")

PREFIX = "--config."
CHOICES = "list of items, each one of "
"""Beginning of the type, in words, of flags that accept several values from a fixed set."""

Overrides = list[tuple[str, str]]
"""(path.to.field, text) for each --config.path.to.field=text."""


class Group(NamedTuple):
    """Flags generated from the fields of one record.

    Attributes:
      title: heading above them in `--help`.
      record: a dataclass that describes its fields in an `Attributes:` section.
      default: default shown in `--help` for every flag of the group; None to show each field's own default.
      leave_out: fields that are not flags.
    """

    title: str
    record: Any
    default: str | None = None
    leave_out: tuple[str, ...] = ()

    @property
    def fields(self) -> list[Field]:
        """The fields that are flags."""
        return [field for field in fields_of(self.record) if field.name not in self.leave_out]


class Command(NamedTuple):
    """A program of the command line.

    Attributes:
      about: the beginning of `--help`.
      groups: its flags; their names are unique.
      main: the program, called with the values of the flags on the command line and the overrides.
      topics: name -> function that returns the text of `--help=NAME`.
      stores: flags whose files and folders may be in an object store.
      memory: advice for the error message when memory runs out.
      own_signals: whether the command handles SIGTERM itself; if not, SIGTERM ends it like Ctrl-C.
      leave: exits the process with a nonzero status.
    """

    about: str
    groups: Sequence[Group]
    main: Callable[[dict[str, Any], Overrides], None]
    topics: Mapping[str, Callable[[], str]] = MappingProxyType({})
    stores: tuple[str, ...] = ()
    memory: str = MORE_MEMORY
    own_signals: bool = False
    leave: Callable[[int], NoReturn] = sys.exit


def run(command: Command, arguments: Sequence[str] | None = None) -> None:
    """Run a command line. A user error prints one sentence and exits with status 2.

    Args:
      command: the program.
      arguments: the program's name and its arguments; None to use `sys.argv`.
    """
    program, *rest = sys.argv if arguments is None else arguments
    program = Path(program).name

    def main() -> None:
        if (topic := _help_wanted(rest)) is not None:
            print(help_text(command, program, topic))  # noqa: T201
            return
        values, overrides = parse(command, rest)
        if not faulthandler.is_enabled():
            faulthandler.enable()
        flags.FLAGS.mark_as_parsed()  # library flags keep their defaults
        silence_libraries()
        with contextlib.nullcontext() if command.own_signals else sigterm_interrupts():
            command.main(values, overrides)

    guard(main, program=program, memory=command.memory, leave=command.leave)


def parse(command: Command, arguments: Sequence[str]) -> tuple[dict[str, Any], Overrides]:
    """Return the values of the given flags, and the overrides.

    Raises:
      UserError, flags.Error: an argument that is not a flag of the command, a value of the wrong type, or an
        unsupported address such as gs://bucket.
    """
    rest, overrides = split_overrides(arguments)
    values = flags.FlagValues()
    for group in command.groups:
        for field in group.fields:
            _define(values, field)
    try:
        left = values(["", *rest])
    except flags.UnrecognizedFlagError as error:
        near = did_you_mean(error.flagname, values, otherwise="; see --help")
        raise UserError(f"--{error.flagname} is not a flag of this command{near}") from None
    except flags.IllegalFlagValueError as error:  # absl puts any ValueError of a parser, such as ours, into its own
        raise (error.__context__ if isinstance(error.__context__, UserError) else error) from None
    if len(left) > 1:
        raise UserError(f"{left[1]}: expected arguments of the form --name=value; see --help")
    given = {name: places.with_home(values[name].value) for name in values if values[name].present}
    for name, value in given.items():
        places.check_place(f"--{name}", value, stores=name in command.stores)
    return given, overrides


def refuse_overrides(overrides: Overrides, what: str) -> None:
    """Raise UserError for --config.path.to.field=value of a command that reads its configuration from a run.

    `what` is what the command produces, the subject of the message: "a picture".
    """
    if overrides:
        field = f"{PREFIX}{overrides[0][0]}"
        raise UserError(f"{field}: {what} uses the configuration in --workdir; remove this flag")


def options_of(cls: type[T], values: Mapping[str, Any], **others: Any) -> T:
    """Build a record from the values of the flags that are its fields."""
    names = {field.name for field in fields_of(cls)}
    return cls(**{name: value for name, value in values.items() if name in names}, **others)


def help_text(command: Command, program: str, topic: str = "") -> str:
    """Return the text of `--help` (every flag with its type, default and description) or of a topic.

    Raises:
      UserError: the topic does not exist.
    """
    if topic:
        if topic not in command.topics:
            raise UserError(f"--help={topic}: unknown topic{did_you_mean(topic, command.topics)}")
        return command.topics[topic]()
    lines = [command.about.strip().format(program=program)]
    for group in command.groups:
        lines += ["", f"{group.title}:"]
        for field in group.fields:
            lines.append(f"  {usage(field)}{default_text(field, group)}")
            lines += textwrap.wrap(field.text, width=100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], Overrides]:
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
            raise UserError(f"{argument} has no value: use {PREFIX}path.to.field=value")
        overrides.append((path, places.with_home(text)))
    return rest, overrides


def read_config(given: str, overrides: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of a configuration file as nested dictionaries, with overrides applied.

    Args:
      given: path of a Python file that defines `get_config()`, which returns dictionaries or an ml_collections
        ConfigDict; path of a run's config.json; the address of either in an object store; or name of a configuration
        that comes with the package. A local Python file may import files beside it.
      overrides: (path.to.field, text) of the command line.

    Raises:
      UserError: no such file, no `get_config`, or an error inside it, with its line.
    """
    with opened_config(given) as (file, text):  # rejects anything that is not a text file of reasonable size
        path = str(file)
        values = _values_of_json(path, text) if path.endswith(".json") else _values_of_python(path)
    if isinstance(values, dict):  # config.json, or a Python file that returns its content: the checksum is not a field
        values = {name: value for name, value in values.items() if name != checksums.FIELD}
    for field, value in overrides:
        values = override(values, field, value)
    return values


def _values_of_json(path: str, text: str) -> Any:
    with contextlib.suppress(checksums.DamagedError):
        if isinstance(values := checksums.parsed(text), dict):
            return values
    raise UserError(f"{path} is not the config.json of a run: use one, or a Python file with get_config()")


def _values_of_python(path: str) -> Any:
    before = list(sys.path)
    sys.path.append(os.path.dirname(os.path.abspath(path)))  # the file may import its neighbours, which hide no library
    try:
        values = runpy.run_path(path)["get_config"]()
    except UserError:
        raise
    except SyntaxError as error:
        where = error.filename or path  # it may be in a file that the configuration imports
        hint = "" if path.endswith(".py") else "; a configuration is a Python file with get_config(), or a config.json"
        raise UserError(f"{where}, line {error.lineno}: {type(error).__name__}: {error.msg}{hint}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, KeyError) and error.args == ("get_config",):
            raise UserError(f"{path} does not define get_config(), which returns the values") from None
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f"{path}, line {lines[-1]}" if lines else path
        raise UserError(f"{where}: {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = before
    return values.to_dict() if hasattr(values, "to_dict") else values


class _FieldParser(flags.ArgumentParser):
    """Parses the text of a flag as the type of its field."""

    def __init__(self, field: Field) -> None:
        self._field = field

    def parse(self, argument: str) -> Any:
        """Return the value. Raises UserError if it has another type."""
        return read_text(self._field.kind, argument, f"--{self._field.name}")


def _define(values: flags.FlagValues, field: Field) -> None:
    """Define a flag for a field. The flag has no default; the record does."""
    name, boolean = field.name, field.kind is bool
    flag = flags.Flag(_FieldParser(field), flags.ArgumentSerializer(), name, None, field.text, boolean=boolean)
    flags.DEFINE_flag(flag, flag_values=values)


def _help_wanted(arguments: Sequence[str]) -> str | None:
    """Return the topic of --help, "" for --help without a topic, or None if it is not among the arguments."""
    for argument in arguments:
        if argument in ("-h", "-help", "--help"):
            return ""
        if argument.startswith("--help="):
            return argument.removeprefix("--help=")
    return None


def usage(field: Field) -> str:
    """Return the usage of a flag, as in --beam_size=N."""
    if field.kind is bool:
        return f"--[no]{field.name}"
    text = type_text(field.kind).removesuffix(" or None")
    if text.startswith(CHOICES):
        return f"--{field.name}={text.removeprefix(CHOICES).replace(', ', ',')}"
    short = {"integer": "N", "number": "X", "string": "TEXT", "list of strings": "A,B", "list of integers": "N,N"}
    return f"--{field.name}={short.get(text, text.removeprefix('one of ').replace(', ', '|'))}"


def default_text(field: Field, group: Group) -> str:
    """Return the default as `--help` shows it after a flag: "  (default: 5)", or "" if there is none."""
    if group.default is not None:
        return f"  (default: {group.default})"
    if field.default in (MISSING, None, "", ()) or field.default is False:
        return ""
    shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    return f"  (default: {shown})"


_PACKAGE = Path(__file__).parents[1]
_LARGEST = 1 << 24
"""Maximum size of a configuration file in bytes."""


def configs_folder() -> Path:
    """Return the folder of the configurations: inside an installed package, next to the package in a checkout."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def config_names() -> list[str]:
    """Return the names of all configurations, sorted."""
    return sorted(path.stem for path in configs_folder().glob("*.py") if path.stem != "__init__")


def find_config(given: str) -> Path:
    """Return the configuration file that `--config` specifies, by its path or by the name of a built-in configuration.

    A name may end in .py, since the documents also show the names of the files.

    Raises:
      UserError: neither exists, or the path is that of a folder.
    """
    if os.path.isfile(given):  # unlike Path.is_file, this raises no error for a name that is too long
        return Path(given)
    name = Path(given[-200:]).name.removesuffix(".py")
    if given.removesuffix(".py") in config_names():
        return configs_folder() / f"{name}.py"
    what = f"--config={shortened(given, 1000)}"
    if os.path.isdir(given):
        raise UserError(f"{what} is a folder; use a file, or the name of a configuration")
    near = did_you_mean(name, config_names(), otherwise=f"; the configurations are in {configs_folder()}")
    raise UserError(f"{what}: no such file and no configuration of that name exists{near}")


@contextlib.contextmanager
def opened_config(given: str) -> Iterator[tuple[Path, str]]:
    """Yield the file that `--config` specifies, or a temporary copy of an object, and its text.

    Raises:
      UserError: as in `find_config`, `files.read_text` and `local_copies.incoming`.
    """
    place = given if scheme_of(given) else str(find_config(given))
    with sigterm_interrupts(), local_copies.incoming("--config", place) as path:  # otherwise SIGTERM would leave a copy
        yield path, files.read_text(path, remedy="choose a configuration file", most=_LARGEST)


def config_text(given: str) -> str:
    """Return the text of the configuration that `--config` specifies. Errors as in `opened_config`."""
    with opened_config(given) as (_, text):
        return text
