"""Load the batches of a plan. A background thread fills them and sends them to the device ahead of use.

The next epoch is also prepared in the background.
"""

import collections
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.data.plan import Plan, PlannedBatch
from convs2s_jax.data.tokens_on_disk import TokenizedText

E = TypeVar("E")

AHEAD = 4
"""Number of batches prepared in advance."""


def fill(sentences: TokenizedText, rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return sentences with their end symbols, padded on the right: [B, length] int32.

    Args:
      sentences: token ids without end symbols.
      rows: indices of the sentences, at most B; the remaining rows are all PAD.
      shape: (B, length); a longer sentence is truncated and keeps its end symbol.
    """
    tokens, begin = sentences.tokens, sentences.offsets[rows]
    lengths = np.minimum(sentences.offsets[rows + 1] - begin, shape[1] - 1)
    column = np.arange(min(shape[1] - 1, len(tokens)))
    # window i is tokens[i : i + width]: numpy copies whole windows much faster than single tokens
    width, count = len(column), len(tokens) - len(column) + 1
    windows = np.ndarray((count, width), tokens.dtype, tokens, strides=tokens.strides * 2)
    found = windows[np.minimum(begin, count - 1)]
    if (last := begin >= count).any():  # their windows would pass the end of the text
        found[last] = tokens.take(begin[last, None] + column, mode="clip")
    filled = np.full(shape, PAD, np.int32)
    np.copyto(filled[: len(rows), :width], found, where=column < lengths[:, None], casting="unsafe")
    filled[np.arange(len(rows)), lengths] = EOS
    return filled


def load(plan: Plan, make: Callable[[PlannedBatch], Any], *, start: int = 0) -> Iterator[Any]:
    """Yield the plan's batches from `start` on, built by a background thread.

    An error in `make` is raised here. Closing the iterator early stops the thread.

    Args:
      plan: the plan of one epoch.
      make: builds a batch and sends it to the device; called in order, in the background.
      start: index of the first batch, to resume an epoch.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="loader")
    begun = (pool.submit(make, batch) for batch in plan.batches[start:])
    ready = collections.deque(itertools.islice(begun, AHEAD))
    try:
        while ready:
            batch = ready.popleft().result()
            ready.extend(itertools.islice(begun, 1))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


class Epochs(Generic[E]):
    """The data of epochs, such as their plans. While one is in use, a background thread prepares the next."""

    def __init__(self, make: Callable[[int], E], *, last: int | None = None) -> None:
        """Initialise without preparing an epoch.

        Args:
          make: epoch -> its data, such as its plan; epochs are numbered from 1.
          last: the last epoch that will be requested; None if unknown.
        """
        self._make, self._last = make, last
        self._next: tuple[int, Future[E]] | None = None

    def get(self, epoch: int) -> E:
        """Return the data of an epoch and start to prepare the next one. An error in `make` is raised here."""
        begun, self._next = self._next, None
        plan = begun[1].result() if begun and begun[0] == epoch else self._make(epoch)
        if self._last is None or epoch < self._last:
            self._next = (epoch + 1, Future())
            # a thread that does not keep the process alive
            threading.Thread(target=self._prepare, args=self._next, name=f"epoch {epoch + 1}", daemon=True).start()
        return plan

    def _prepare(self, epoch: int, future: "Future[E]") -> None:
        try:
            future.set_result(self._make(epoch))
        except BaseException as error:  # raised again by `get`
            future.set_exception(error)
