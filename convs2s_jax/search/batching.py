"""Batching: group sentences into batches of few shapes, and run them on several devices, a few at a time."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.config import check, record
from convs2s_jax.core.rows import pad_rows, round_up
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.requests import NO_AXES, Sizes

T = TypeVar("T")

AXIS = "device"
"""Name of the mesh axis that batches are spread over."""
IN_FLIGHT = 2
"""Batches in progress at once: while one does serial work, the matrix products of the other keep the cores busy."""
NARROWEST = 16
"""Minimum width of arrays."""


@record
class Batching:
    """How sentences are batched. Results do not depend on it, but time, memory and the number of compilations do.

    The lower bounds let small batches share one compiled program.

    Attributes:
      size: maximum number of sentences in a batch.
      tokens: maximum number of source tokens in a batch, including padding; a longer sentence gets its own batch.
      min_width: minimum width of source arrays.
      min_rows: minimum number of rows of a batch that is the only one.
      min_axes: minimum sizes of the arrays of prefixes and phrases; room for phrases makes every search a constrained
        one.
      word_sizes: with a shortlist, the allowed sizes of a batch's words, in ascending order, the whole vocabulary last;
        if empty, those of `shortlist.union_size`.
    """

    size: int = 64
    tokens: int = 16384
    min_width: int = NARROWEST
    min_rows: int = 1
    min_axes: Sizes = NO_AXES
    word_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("size", "tokens", "min_width", "min_rows"):
            check(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: use 1 or more")


DEFAULT_BATCHING = Batching()


class Bucket(NamedTuple):
    """One batch.

    Attributes:
      rows: number of rows.
      width: number of columns.
      indices: indices of its sentences, at most `rows`.
    """

    rows: int
    width: int
    indices: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the batch; batches of equal shape share one compilation."""
        return self.rows, self.width

    @property
    def padded(self) -> list[int | None]:
        """The indices of the sentences, then None for each empty row."""
        return [*self.indices, *[None] * (self.rows - len(self.indices))]


def batches(
    lengths: Sequence[int], batching: Batching = DEFAULT_BATCHING, *, among: Sequence[int] | None = None
) -> list[Bucket]:
    """Group sentences of similar length into batches, longest first.

    With the longest first, running out of memory shows at once, and estimates of the remaining time are not too low.
    Batches of equal width have the same number of rows, so they share one shape. If there is only one batch, its number
    of rows is the next power of two, or `min_rows`. Empty rows cost little, because the search drops them.

    Args:
      lengths: source length of each sentence, including its end symbol; at least 1.
      batching: the maximum batch size and the minimum sizes of its arrays.
      among: indices of the sentences to group; None for all.

    Returns:
      Batches that contain each of them once. Sentences of equal length stay in input order.
    """
    order = sorted(range(len(lengths)) if among is None else among, key=lambda i: -lengths[i])
    plan, begin = [], 0
    while begin < len(order):
        width = width_of(max(lengths[order[begin]], batching.min_width))
        most = min(batching.size, max(1, batching.tokens // width))
        plan.append(Bucket(most, width, tuple(order[begin : begin + most])))
        begin += most
    if len(plan) == 1:
        (only,) = plan
        plan = [only._replace(rows=min(only.rows, max(batching.min_rows, _power_of_two(len(only.indices)))))]
    return plan


def default_window(size: int, devices: int) -> int:
    """Return the number of sentences to plan at once, so that few places of the batches are empty.

    All devices work on batches of one width at a time, and the last ones of each width do not fill them all. With
    batches of up to `size` sentences of common lengths, at least 95 % of the places of 8 devices and 80 % of 256 are
    filled.
    """
    rows = max(64, min(size, 1024))
    return min(64 * rows * (1 if devices == 1 else 2 * devices), max(1 << 20, 64 * rows))


def width_of(length: int) -> int:
    """Round a source length up to an array width, a multiple of 8 up to 32, of 16 up to 128, then of larger steps.

    The larger steps are an eighth of the next power of two. Each width takes seconds to compile, while a few columns of
    padding only add a few percent of work.
    """
    return round_up(length, 8 if length <= 32 else max(16, _power_of_two(length) // 8))


def widths_up_to(longest: int) -> tuple[int, ...]:
    """Return a few widths for sources of up to `longest` tokens, including the end symbol, each twice the previous one.

    They keep the number of compilations low when every width is compiled in advance; `width_of` pads less.
    """
    widths = [NARROWEST]
    while widths[-1] * 2 < longest:
        widths.append(widths[-1] * 2)
    return (*widths, width_of(longest)) if longest > NARROWEST else (NARROWEST,)


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def max_output_length(cfgs: Sequence[ModelConfig], search: SearchConfig, source_length: int) -> int:
    """Return the maximum number of tokens before the end symbol; `source_length` includes the end symbol."""
    return min(search.max_length(source_length), *(c.max_target - 1 for c in cfgs))


def source_rows(sources: Sequence[np.ndarray], indices: Sequence[int | None], width: int) -> np.ndarray:
    """Return rows of source tokens, end symbol and PAD, [len(indices), width]; empty rows (None) have an end symbol."""
    return pad_rows([() if i is None else sources[i] for i in indices], (len(indices), width))


def put(arrays: Any, mesh: Mesh | None) -> Any:
    """Put arrays on the default device, or shard their rows over the devices of a mesh."""
    return jax.device_put(arrays, None if mesh is None else NamedSharding(mesh, P(AXIS)))


def replicator(members: T) -> Callable[[Mesh | None], T]:
    """Return a function mesh -> parameters, which copies them to the devices of the mesh only once."""
    copies: dict[Mesh, T] = {}
    one_at_a_time = threading.Lock()

    def on(mesh: Mesh | None) -> T:
        if mesh is None:
            return members
        with one_at_a_time:
            if mesh not in copies:
                copies[mesh] = jax.device_put(members, NamedSharding(mesh, P()))
            return copies[mesh]

    return on


def spread(
    plan: Sequence[Bucket],
    run: Callable[[Sequence[Bucket], Mesh | None], Any],
    devices: Sequence[jax.Device] | None,
    progress: Callable[[int], None] | None,
) -> Iterator[tuple[int, Any]]:
    """Run all batches, one per device and a few at a time. Yield each sentence's index and its row of the results.

    Batches, and the program that runs on each device, do not depend on the number of devices.
    """
    mesh, groups = grouped(plan, devices)
    first_come: dict[tuple[int, ...], threading.Lock] = {g[0].shape: threading.Lock() for g in groups}
    compiled: set[tuple[int, ...]] = set()

    def work(group: Sequence[Bucket]) -> Any:
        shape = group[0].shape
        with contextlib.nullcontext() if shape in compiled else first_come[shape]:
            started = run(group, mesh)
            compiled.add(shape)
        return jax.device_get(started)

    pool = ThreadPoolExecutor(IN_FLIGHT)
    try:
        for group, found in zip(groups, pool.map(work, groups), strict=True):
            for row, i in enumerate(itertools.chain.from_iterable(bucket.padded for bucket in group)):
                if i is not None:
                    yield i, jax.tree.map(lambda x: x[row], found)  # noqa: B023
            if progress is not None:
                progress(sum(len(bucket.indices) for bucket in group))
    finally:
        pool.shutdown(cancel_futures=True)


def grouped(plan: Sequence[Bucket], devices: Sequence[jax.Device] | None) -> tuple[Mesh | None, list[list[Bucket]]]:
    """Form groups of adjacent batches of equal shape, one batch for each device, filled up with empty batches.

    Return a mesh of the devices, None for the default device, and the groups. Arguments are as in `spread`.
    """
    chosen = list(devices) if devices is not None else jax.local_devices()
    size = max(1, min(len(chosen), len(plan)))
    mesh = Mesh(np.array(chosen[:size]), (AXIS,)) if devices is not None or size > 1 else None
    groups: list[list[Bucket]] = []
    for bucket in plan:
        if groups and len(groups[-1]) < size and groups[-1][0].shape == bucket.shape:
            groups[-1].append(bucket)
        else:
            groups.append([bucket])
    return mesh, [group + [group[0]._replace(indices=())] * (size - len(group)) for group in groups]
