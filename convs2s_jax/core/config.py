"""Typed configuration: nested dictionaries, overrides and JSON in, frozen dataclasses out.

Configuration files and `config.json` contain plain dictionaries. `build` converts them once into the records that the
program uses. An invalid value raises an error that states the field.
"""

import ast
import dataclasses
import functools
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

from convs2s_jax.core.errors import UserError, did_you_mean, shortened, shown

T = TypeVar("T")

LARGEST = 2**31 - 1
"""Largest integer in a configuration: JAX counts rows and columns in signed 32-bit integers."""
LARGEST_SEED = 2**32 - 1
"""Largest value of a field named seed: a larger one would be truncated to 32 bits."""
LONGEST = 4096
"""Maximum number of characters of a string in a configuration, the same as for a path."""
ITEMS = 10_000
"""Maximum number of items of a list in a configuration."""
LAST_BEFORE = "f02697ce"
"""The last commit with the fields that records list in `RETIRED`: field -> the value still accepted, `...` for any."""


@typing.overload
@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]: ...


@typing.overload
@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def record(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...


def record(cls: type[T] | None = None, *, kw_only: bool = True) -> Any:
    """Class decorator for config records: a frozen dataclass that converts its values as `build` does.

    `ConvEncoderConfig(layers=[(32, 3)] * 2)` thus means the same in Python as in a configuration file. Lists become
    tuples, and tuples or dictionaries become the annotated records.

    Args:
      cls: the class.
      kw_only: whether fields are keyword-only.
    """
    if cls is None:
        return functools.partial(record, kw_only=kw_only)
    made: Any = cls
    rules = getattr(cls, "__post_init__", None)

    def post_init(self: Any) -> None:
        for field in dataclasses.fields(made):
            value = convert(_hints(made)[field.name], getattr(self, field.name), field.name)
            object.__setattr__(self, field.name, value)
        if rules is not None:
            rules(self)

    made.__post_init__ = post_init
    return dataclasses.dataclass(frozen=True, kw_only=kw_only)(made)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the types of a record's fields, computed once per class on first use."""
    return typing.get_type_hints(cls)


def build(cls: type[T], values: Any, where: str = "config") -> T:
    """Build a config record from nested dictionaries and lists.

    Args:
      cls: a frozen dataclass; its annotations are the accepted types.
      values: a mapping from field names to values, or a record of type `cls`; missing fields get the record's defaults.
      where: path of the record, for messages.

    Raises:
      UserError: an unknown field (the message suggests the closest one), a wrong type, or an invalid value.
    """
    return convert(cls, values, where)


def to_dict(cfg: Any) -> Any:
    """Convert a config record to nested dictionaries and lists that `build` accepts and JSON can store."""
    if dataclasses.is_dataclass(cfg):
        return {field.name: to_dict(getattr(cfg, field.name)) for field in dataclasses.fields(cfg)}
    if isinstance(cfg, tuple):
        return [to_dict(item) for item in cfg]
    return cfg


def differences(
    there: Any,
    here: Any,
    *,
    free: Callable[[str], bool] = lambda _: False,
    path: str = "",
    places: tuple[str, str] = ("there", "here"),
) -> str:
    """List the first five fields that differ, except free ones, for a message; "" if there are none.

    Of records of different kinds, only the kinds are listed.

    Args:
      there, here: two records of a configuration.
      free: whether the field with this path may differ.
      path: path of both within the configuration of a run.
      places: what the message calls the two.
    """
    found = _differences(to_dict(there), to_dict(here), path)
    odd = [f"{name} is {a!r} {places[0]} and {b!r} {places[1]}" for name, a, b in found if not free(name)]
    return "; ".join(odd[:5]) + (f"; and {len(odd) - 5} more" if len(odd) > 5 else "")


def _differences(there: Any, here: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """(path, value there, value here) of each field that differs."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        kinds = there.get("kind"), here.get("kind")
        for name in ("kind",) if None not in kinds and kinds[0] != kinds[1] else sorted({*there, *here}):
            yield from _differences(there.get(name), here.get(name), f"{path}.{name}" if path else name)
    elif isinstance(there, list) and isinstance(here, list) and [*map(type, there)] == [dict] * len(here):
        yield from _differences(dict(enumerate(there)), dict(enumerate(here)), path)
    elif there != here:
        yield path, there, here


def read_text(kind: Any, text: str, where: str) -> Any:
    """Convert the text of a flag to the annotated type `kind`; list items are separated by commas.

    The name of a file or folder that exists is one item, with its commas.

    Raises:
      UserError: the text has the wrong type; the message begins with `where`.
    """
    if typing.get_origin(kind) is tuple:
        items = [text] if os.path.exists(text) else [item.strip() for item in text.split(",")] if text else []
        item_kind = typing.get_args(kind)[0]
        return tuple(read_text(item_kind, item, f"{where}[{i}]") for i, item in enumerate(items))
    kinds = [inner for inner in typing.get_args(kind) if inner is not type(None)] or [kind]
    as_text = kinds[0] is str or isinstance(kinds[0], str) or typing.get_origin(kinds[0]) is Literal
    return convert(kind, text if as_text else literal(text), where)


def override(values: Any, path: str, text: str, where: str = "config") -> dict[str, Any]:
    """Set one value in nested dictionaries from a command line: `override(d, "model.dropout", "0.3")`.

    A Python literal (0.3, True, [(256, 3)] * 4) is parsed; any other text is a string.

    Args:
      values: a mapping, a config record, or None for an empty one; it is not modified.
      path: path of the value inside `values`.
      text: the value as given on the command line.
      where: path of `values`, for messages.

    Raises:
      UserError: the path goes through a value that has no fields.
    """
    if dataclasses.is_dataclass(values):
        values = to_dict(values)
    if values is not None and not isinstance(values, Mapping):
        raise UserError(f"{where}.{path}: {where} is {shown(values)}, which has no fields; set {where} as a whole")
    values = values or {}
    head, _, rest = path.partition(".")
    inner = override(values.get(head), rest, text, f"{where}.{head}") if rest else literal(text)
    return {**values, head: inner}


_ADDED: dict[tuple[Any, ...], dict[str, Any]] = {}
"""Records that `add_kind` registered: union members -> kind -> record."""


def add_kind(union: Any, base: type, cls: Any) -> None:
    """Accept another record in every field annotated with this union, for the rest of the process.

    Args:
      union: of records that differ in their `kind`, such as `ConvolutionConfig`.
      base: the class that all of them inherit from.
      cls: a record whose field `kind` has the name of the kind as its default. A class with the same module and name
        replaces an earlier one, so that notebook cells can be re-run.

    Raises:
      ValueError: the class is not such a record, or its kind already exists.
    """
    if not (isinstance(cls, type) and issubclass(cls, base)):
        given = cls.__name__ if isinstance(cls, type) else shown(cls)
        raise ValueError(f"{given} is not a {base.__name__}: inherit from `{base.__module__}.{base.__name__}`")
    kinds = typing.get_args(union)
    name, added = getattr(cls, "kind", None), _ADDED.setdefault(kinds, {})
    if not (dataclasses.is_dataclass(cls) and isinstance(name, str)):
        raise ValueError(
            f"{cls!r} is not a config of a kind: use `record` and a field such as kind: Literal['x'] = 'x'"
        )
    taken = {kind.kind: kind for kind in kinds} | added
    same = name in added and _full_name(cls) == _full_name(added[name])
    if name in taken and (not same or cls is taken[name]):
        raise ValueError(
            f"kind '{name}' is already used by {taken[name].__name__}; choose another name (existing kinds: "
            f"{', '.join(taken)})"
        )
    added[name] = cls


def _full_name(cls: Any) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def check(rule: bool, message: str) -> None:
    """Raise UserError with `message` unless `rule` is true. For `__post_init__` of config records."""
    if not rule:
        raise UserError(message)


def convert(kind: Any, value: Any, where: str) -> Any:
    """Convert one value to the annotated type `kind`.

    Raises:
      UserError: the value has the wrong type; the message begins with `where`.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments, value, where)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) != isinstance(arguments[0], bool):
            known = [str(item) for item in arguments]
            raise UserError(f"{where} is {shown(value)}{did_you_mean(_plain(value), known)}")
        return arguments[arguments.index(value)]
    if origin is tuple:
        return _tuple(arguments, value, where)
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    return _scalar(kind, value, where)


def _record(cls: Any, value: Any, where: str) -> Any:
    if isinstance(value, cls):
        return value
    fields = [field.name for field in dataclasses.fields(cls)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > len(fields):
            raise UserError(f"{where} is {shown(value)}: at most {len(fields)} values ({', '.join(fields)})")
        value = dict(zip(fields, value, strict=False))
    if not isinstance(value, Mapping):
        raise UserError(f"{where} is {shown(value)}: expected fields ({', '.join(fields)})")
    hints, retired = _hints(cls), vars(cls).get("RETIRED", {})
    value = {name: item for name, item in value.items() if name not in retired or retired[name] not in (item, ...)}
    for name in value:
        if name not in fields:
            rule = f"this version has no such field; leave it out, or use version {LAST_BEFORE}"
            check(name not in retired, f"{where}.{name} is {shown(value[name])}: {rule}")
            name = _plain(name)
            raise UserError(f"{where}.{name}: there is no field '{name}'{did_you_mean(name, fields)}")
    missing = [field.name for field in dataclasses.fields(cls) if _required(field) and field.name not in value]
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} must be set")
    converted = {name: convert(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    try:
        return cls(**converted)
    except UserError as error:  # from a rule of the record, which does not know the record's path
        raise UserError(f"{where}.{error}") from None


def _plain(name: Any) -> str:
    """Format a name for a message: without quotes, and shortened if it is long."""
    return shortened(name, 200) if isinstance(name, str) else shown(name)


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """Convert to a string or another kind, to an optional value, or to one of several records.

    A record is selected by the field `kind` (default: the first).
    """
    if value is None and type(None) in kinds:
        return None
    text = str in kinds and isinstance(value, str)
    kinds = tuple(kind for kind in kinds if kind is not type(None) and (kind is str) == text)
    kinds += tuple(_ADDED.get(kinds, {}).values())
    if len(kinds) == 1:
        return convert(kinds[0], value, where)
    records: dict[Any, Any] = {kind.kind: kind for kind in kinds}
    if isinstance(value, kinds):
        return value
    if not isinstance(value, Mapping):
        raise UserError(f"{where} is {shown(value)}: expected fields, with 'kind' one of {', '.join(records)}")
    name = value.get("kind", next(iter(records)))
    if not isinstance(name, str) or name not in records:
        raise UserError(f"{where}.kind is {shown(name)}{did_you_mean(_plain(name), records)}")
    _check_fields(records, name, value, where)
    return _record(records[name], value, where)


def _check_fields(records: Mapping[Any, Any], kind: str, value: Mapping[str, Any], where: str) -> None:
    """Reject fields of another kind, such as those of a configuration file when a flag changed only the kind."""
    fields = {name: {field.name for field in dataclasses.fields(cls)} for name, cls in records.items()}
    for name in value:
        owners = [other for other in records if name in fields[other]]
        if owners and kind not in owners:
            as_flag = f", as --{where}=\"{{'kind': '{kind}'}}\"" if where.startswith("config.") else ""
            raise UserError(
                f"{where} sets '{name}', a field of kind {' and '.join(owners)}, but its kind is {kind}: remove it, "
                f"or, to change the kind, set the whole record{as_flag}{did_you_mean(name, fields[kind])}"
            )


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        fields = dataclasses.fields(kinds[0]) if dataclasses.is_dataclass(kinds[0]) else ()
        items = [field.name if _required(field) else f"[{field.name}]" for field in fields]
        of_items = f" of ({', '.join(items)})" if items else ""
        raise UserError(f"{where} is {shown(value)}: expected a list{of_items}")
    check(len(value) <= ITEMS, f"{where} has {len(value)} items: a list can have at most {ITEMS}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(convert(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(value) != len(kinds):
        raise UserError(f"{where} is {shown(value)}: expected {len(kinds)} values")
    return tuple(convert(k, item, f"{where}[{i}]") for i, (k, item) in enumerate(zip(kinds, value, strict=True)))


_NAMES = {int: "an integer", float: "a number", bool: "True or False", str: "a string"}


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        check(math.isfinite(number), f"{where} is {shown(value)}: use a finite number")
        return number
    if kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        whole = int(value)
        most = LARGEST_SEED if where.rpartition(".")[2].lstrip("-") == "seed" else LARGEST
        check(abs(whole) <= most, f"{where} is {shown(whole)}: expected an integer between -{most} and {most}")
        return whole
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        value = shown(value)  # on a command line, the string 2016 looks like a number
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise UserError(f"{where} is {shown(value)}: expected {_NAMES[kind]}")
    if kind is str:
        check(len(value) <= LONGEST, f"{where} is {shown(value)}: a string can have at most {LONGEST} characters")
        check("\0" not in value, f"{where} is {shown(value)}: a string cannot contain a NUL character")
    return value


REPEATED = 1000
"""Maximum number of items that the notation [(256, 3)] * 4 can create."""


def literal(text: str) -> Any:
    """Parse a Python literal. Lists and tuples may be repeated (*), and lists joined (+), as in fairseq's layer lists.

    Text that is not such a literal, or whose repetitions create more than `REPEATED` items, is returned unchanged.
    Nothing is evaluated: only constants, lists, tuples, dictionaries, repetition and concatenation are parsed.
    """
    try:
        return _literal(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = _literal(node.left), _literal(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        items, times = (left, right) if isinstance(left, list | tuple) else (right, left)
        if isinstance(node.op, ast.Add) or not (isinstance(items, list | tuple) and isinstance(times, int)):
            raise ValueError("only lists can be joined, and lists and tuples repeated")
        if times * len(items) > REPEATED:
            raise ValueError(f"repetition can make at most {REPEATED} items")
        return items * times
    if isinstance(node, ast.List):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_literal(item) for item in node.elts)
    return ast.literal_eval(node)
