"""Check what the pickle of a checkpoint would create, without creating it.

torch's weights-only loader executes nothing, but it trusts what it reads: a storage that is larger than its bytes, a
tensor of a terabyte over four bytes, lists that share each other until there are 2^40 of them. `inspect` first follows
the instructions with plain records, within bounds of time and memory, and refuses all of these.
"""

import dataclasses
import math
import pickletools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO

MOST_INSTRUCTIONS = 1_000_000
"""A checkpoint of fairseq has about 50 for each tensor."""
_MOST_ITEMS, _DEEPEST = 1_000_000, 100
_LARGEST_SHARE = 16
_SLACK = 2**20

STORAGES: Mapping[str, int] = MappingProxyType(
    {f"torch.{kind}Storage": 1 for kind in ("Byte", "Char", "Bool")}
    | {f"torch.{kind}Storage": 2 for kind in ("Short", "Half", "BFloat16")}
    | {f"torch.{kind}Storage": 4 for kind in ("Int", "Float")}
    | {f"torch.{kind}Storage": 8 for kind in ("Long", "Double")}
)
"""Bytes per element, by torch's name of the storage."""
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
TORCH = frozenset({*STORAGES, *_TENSORS, "torch._utils._rebuild_parameter", "torch.Size", "_codecs.encode"})
"""torch's names that appear in pickles of tensors, parameters and byte strings."""
_ORDERED = "collections.OrderedDict"
_OF_PYTHON_2 = {"__builtin__ long": "builtins.int", "__builtin__ unicode": "builtins.str"}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING")
_EMPTY = {"EMPTY_LIST": "list", "EMPTY_DICT": "dict", "EMPTY_TUPLE": "tuple"}
_CONTENT = ("_content", "_val")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SCALARS = (str, int, float, bool, type(None))


class RefusedError(ValueError):
    """The pickle is not that of a checkpoint. The message continues "FILE ..."."""


class AsksForError(RefusedError):
    """The pickle refers to a name that no checkpoint contains. The message is the name."""


@dataclasses.dataclass(eq=False, slots=True)
class _Made:
    """A value of the pickle that is neither a number nor a string.

    Attributes:
      kind: list, dict, tuple, name (of a function or class), storage, tensor or object.
      name: name of the function or class.
      parts: its items, keys and values, or arguments and state.
      size: number of elements of a storage.
    """

    kind: str
    name: str = ""
    parts: list[Any] = dataclasses.field(default_factory=list)
    size: int = 0


@dataclasses.dataclass(eq=False)
class _Machine:
    """The state of an inspection.

    Attributes:
      names: functions and classes that may be referred to.
      length: (key of a storage, bytes that it claims) -> bytes that the file has for it.
      stack: values since the last mark.
      marks: earlier stacks.
      memo: values by their number.
      storages: bytes of each storage seen so far.
      tensors: bytes of all tensors as float32.
    """

    names: Collection[str]
    length: Callable[[str, int], int]
    stack: list[Any] = dataclasses.field(default_factory=list)
    marks: list[list[Any]] = dataclasses.field(default_factory=list)
    memo: dict[int, Any] = dataclasses.field(default_factory=dict)
    storages: dict[str, int] = dataclasses.field(default_factory=dict)
    tensors: int = 0


def inspect(file: BinaryIO, names: Collection[str], length: Callable[[str, int], int]) -> dict[str, int]:
    """Follow one pickle from the file's position to its end, executing nothing.

    Args:
      file: a binary file. Its position is left at the end of the pickle.
      names: functions and classes, besides torch's, that the pickle may refer to, as 'module.name'.
      length: (key of a storage, bytes that it claims) -> bytes that the file has for it.

    Returns:
      The bytes of each storage, by its key.

    Raises:
      AsksForError: the pickle refers to another name.
      RefusedError: the pickle is damaged, or would create more than the file contains.
    """
    machine = _Machine(names, length)
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(file), 1):
            if count > MOST_INSTRUCTIONS:
                raise RefusedError(
                    f"has more than {MOST_INSTRUCTIONS} instructions; a checkpoint has a few for each tensor"
                )
            _step(machine, operation.name, argument)
        (root,) = machine.stack
    except RefusedError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RefusedError("is damaged, truncated, or not a checkpoint") from error
    _check_size(root)
    if machine.tensors > _LARGEST_SHARE * sum(machine.storages.values()) + _SLACK:
        raise RefusedError(f"has tensors of {machine.tensors} bytes over far smaller storages")
    return machine.storages


def _step(machine: _Machine, name: str, argument: Any) -> None:
    """Execute one instruction, by its name in `pickletools`."""
    stack = machine.stack
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(machine.memo[argument])
    elif name in ("BINPUT", "LONG_BINPUT"):
        machine.memo[argument] = stack[-1]
    elif name == "MARK":
        machine.marks.append(stack)
        machine.stack = []
    elif name in _EMPTY:
        stack.append(_Made(_EMPTY[name]))
    elif name in _TUPLES:
        _gather(stack, _TUPLES[name])
    elif name == "TUPLE":
        items = _marked(machine)
        machine.stack.append(_Made("tuple", parts=items))
    elif name in ("APPEND", "APPENDS"):
        items = [stack.pop()] if name == "APPEND" else _marked(machine)
        _of_kind(machine.stack[-1], "list").parts.extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else _marked(machine)
        _set_items(machine.stack[-1], items)
    elif name == "GLOBAL":
        stack.append(_Made("name", _name(machine, argument)))
    elif name in ("REDUCE", "NEWOBJ"):
        arguments = _of_kind(stack.pop(), "tuple").parts
        stack.append(_call(machine, _of_kind(stack.pop(), "name").name, arguments))
    elif name == "BUILD":
        state = stack.pop()
        _of_kind(stack[-1], "object").parts.append(state)
    elif name == "BINPERSID":
        stack.append(_storage(machine, _of_kind(stack.pop(), "tuple").parts))
    elif name not in ("PROTO", "STOP"):
        raise RefusedError(f"contains the pickle instruction {name}, which torch does not write")


def _gather(stack: list[Any], count: int) -> None:
    items = stack[-count:]
    if len(items) < count:
        raise IndexError
    stack[-count:] = [_Made("tuple", parts=items)]


def _marked(machine: _Machine) -> list[Any]:
    items, machine.stack = machine.stack, machine.marks.pop()
    return items


def _of_kind(value: Any, kind: str) -> _Made:
    if not isinstance(value, _Made) or value.kind != kind:
        raise TypeError
    return value


def _set_items(target: Any, items: list[Any]) -> None:
    """Only numbers and strings may be keys, since hashing a tuple of shared tuples may take forever."""
    if not isinstance(target, _Made) or not (target.kind == "dict" or target.name == _ORDERED):
        raise TypeError
    if len(items) % 2 or not all(isinstance(key, _SCALARS) for key in items[::2]):
        raise RefusedError("has a dictionary whose keys are neither strings nor numbers")
    target.parts.extend(items)


def _name(machine: _Machine, argument: str) -> str:
    module, _, name = argument.partition(" ")
    module = "builtins" if module == "__builtin__" else module
    full = _OF_PYTHON_2.get(argument, f"{module}.{name}")
    if full not in TORCH and full not in machine.names:
        raise AsksForError(full)
    return full


def _call(machine: _Machine, name: str, arguments: list[Any]) -> _Made:
    """The result of calling a function or class."""
    if name in STORAGES or (name == _ORDERED and arguments):
        raise TypeError
    if name == "_codecs.encode" and (len(arguments) != 2 or arguments[1] not in ("latin1", "latin-1")):
        raise TypeError
    if name in _TENSORS:
        return _tensor(machine, arguments)
    if name == "torch._utils._rebuild_parameter":
        return _of_kind(arguments[0], "tensor")
    return _Made("object", name, list(arguments))


def _storage(machine: _Machine, parts: list[Any]) -> _Made:
    """Parse ('storage', class, key, location, number of elements), in older files followed by a view, which is None."""
    mark, kind, key, _, count, *view = parts
    if mark != "storage" or not isinstance(key, str) or any(part is not None for part in view):
        raise TypeError
    item = STORAGES[_of_kind(kind, "name").name]
    claimed = _whole(count) * item
    held = machine.length(key, claimed)
    if claimed > held:
        raise RefusedError(f"has a storage that claims {_shown(claimed)} bytes, but the file contains {held} of them")
    machine.storages[key] = max(claimed, machine.storages.get(key, 0))
    return _Made("storage", parts=[item], size=count)


def _tensor(machine: _Machine, arguments: list[Any]) -> _Made:
    """Parse (storage, offset, shape, strides, ...). The tensor must lie in its storage and have no more elements."""
    storage, offset, shape, strides = _of_kind(arguments[0], "storage"), *arguments[1:4]
    sizes = [_whole(size) for size in _shape(shape)]
    steps = [_whole(step) for step in _shape(strides)]
    if len(sizes) != len(steps):
        raise TypeError
    count = math.prod(sizes)
    last = _whole(offset) + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if count > storage.size or (count and last >= storage.size):
        raise RefusedError(
            f"has a tensor of {_shown(count)} elements over a storage of {_shown(storage.size)}; its shape or strides "
            "are not those that were saved"
        )
    machine.tensors += 4 * count
    return _Made("tensor")


def _shape(value: Any) -> list[Any]:
    """Items of a tuple, or of a torch.Size built from one."""
    if isinstance(value, _Made) and value.name == "torch.Size":
        (value,) = value.parts
    return _of_kind(value, "tuple").parts


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _shown(count: int) -> str:
    return str(count) if count < 10**18 else f"about {count:.0e}" if count < 10**300 else "more than 1e300"


def _walked(node: _Made) -> list[Any]:
    """The parts that `files.read` visits. Of a placeholder, that is omegaconf's content, but not its parents."""
    if node.kind != "object" or node.name in (_ORDERED, "argparse.Namespace"):
        return node.parts
    states = [part.parts for part in node.parts if isinstance(part, _Made) and part.kind == "dict"]
    return [item for parts in states for name, item in zip(parts[::2], parts[1::2], strict=True) if name in _CONTENT]


def _check_size(root: Any) -> None:
    """Refuse values that grow without bound when expanded: lists that are shared, deep, or contain themselves.

    The size of a value that occurs many times is counted each time, but computed once.
    """
    sizes: dict[int, int] = {}
    path: list[tuple[_Made, list[_Made]]] = []
    inside: set[int] = set()

    def enter(node: _Made) -> None:
        if len(path) >= _DEEPEST or id(node) in inside:
            raise RefusedError(f"has lists that are nested deeper than {_DEEPEST} levels or contain themselves")
        inside.add(id(node))
        path.append((node, [part for part in _walked(node) if isinstance(part, _Made)]))

    if isinstance(root, _Made):
        enter(root)
    while path:
        node, waiting = path[-1]
        if waiting:
            child = waiting.pop()
            if id(child) not in sizes:
                enter(child)
            continue
        path.pop()
        inside.discard(id(node))
        sizes[id(node)] = 1 + sum(sizes[id(part)] if isinstance(part, _Made) else 1 for part in _walked(node))
        if sizes[id(node)] > _MOST_ITEMS:
            raise RefusedError(f"has lists with shared items that would expand to more than {_MOST_ITEMS} items")
