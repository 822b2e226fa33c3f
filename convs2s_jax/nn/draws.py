"""Random numbers of fresh parameters: each kernel's on its own, or those of a whole model in one loop.

A program that draws each kernel on its own has the code of the generator once for each shape of a kernel, and XLA
compiles little else: for a GPU it took 24 seconds. `Together` has it once (decision 0045).
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from convs2s_jax.nn.types import Array, Key

T = TypeVar("T")
Kind = Literal["normal", "uniform"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Shape = tuple[int, ...]

CHUNK = 2**15
"""Numbers of one turn of the loop. The last chunk of each draw is cut: more would be wasted on small ones."""


def normal(key: Key, shape: Shape) -> Array:
    """Numbers ~ N(0, 1), float32: those of `jax.random.normal`."""
    source = _SOURCE.get()
    if source is None:
        return jax.random.normal(key, shape)
    return np.float32(math.sqrt(2)) * source(key, shape, "normal")


def uniform(key: Key, shape: Shape, bound: float) -> Array:
    """Numbers ~ U(-bound, bound), float32: those of `jax.random.uniform`."""
    source = _SOURCE.get()
    if source is None:
        return jax.random.uniform(key, shape, minval=-bound, maxval=bound)
    low, high = np.float32(-bound), np.float32(bound)
    return jnp.maximum(low, source(key, shape, "uniform") * (high - low) + low)


def in_one_loop() -> bool:
    """Whether draws are those of a `Together`, where layers that are alike need no loop of their own."""
    return _SOURCE.get() is not None


class Together(Generic[T]):
    """An initialiser in two parts: the keys of its draws, and what it makes of them.

    `init(key)` and `filled(key, keys(key))` are the same numbers. Keys are integers, whose program is best compiled for
    the host with as little optimisation as there is; the other has one loop for the numbers of each kind.
    """

    def __init__(self, init: Callable[[Key], T]) -> None:
        """Trace an initialiser.

        Args:
          init: parameters, a tree of arrays, from a key. What it draws by other functions than `normal` and `uniform`
            of this module is drawn on its own, as ever.
        """
        self._init = init
        self._asked = list[tuple[Shape, Kind]]()

        def traced(key: Key) -> None:
            self._asked = [(shape, kind) for _, shape, kind in _draws_of(init, key)]

        jax.eval_shape(traced, jax.random.key(0))

    def keys(self, key: Key) -> Array:
        """The keys of all draws, in the order in which `init` makes them: [draws, 2] uint32."""
        return jnp.stack([jax.random.key_data(each) for each, _, _ in _draws_of(self._init, key)])

    def filled(self, key: Key, keys: Array) -> T:
        """init(key), with the keys of its draws."""
        numbers = dict[int, Array]()
        for kind in KINDS:
            places = [i for i, (_, other) in enumerate(self._asked) if other == kind]
            if places:
                sizes = [math.prod(self._asked[i][0]) for i in places]
                numbers.update(zip(places, _in_one_loop(keys[np.array(places)], sizes, kind), strict=True))
        ready = iter([numbers[i].reshape(shape) for i, (shape, _) in enumerate(self._asked)])
        with _drawing(lambda _key, _shape, _kind: next(ready)):
            return self._init(key)


def can_be_together() -> bool:
    """Whether JAX draws by the generator that `Together` has, in float32: it does unless it is told otherwise."""
    config: Any = jax.config
    generator = config.jax_default_prng_impl == "threefry2x32" and config.jax_threefry_partitionable
    return bool(generator and not config.jax_enable_x64)


def _draws_of(init: Callable[[Key], object], key: Key) -> list[tuple[Key, Shape, Kind]]:
    """Key, shape and kind of each draw of init(key)."""
    found = list[tuple[Key, Shape, Kind]]()

    def note(key: Key, shape: Shape, kind: Kind) -> Array:
        found.append((key, shape, kind))
        return jnp.zeros(shape)

    with _drawing(note):
        init(key)
    return found


def _in_one_loop(keys: Array, sizes: Sequence[int], kind: Kind) -> list[Array]:
    """The numbers of draws of these keys [n, 2] and sizes, before their scale is applied.

    JAX numbers what a key generates, so that any piece of it can be computed alone. A number in [0, 1) is 23 random
    bits; a normal one is the inverse of the error function there, as in `jax.random`.
    """
    chunks = [-(-size // CHUNK) for size in sizes]
    offsets = np.concatenate([np.arange(n, dtype=np.uint32) * np.uint32(CHUNK) for n in chunks])
    low = np.nextafter(np.float32(-1), np.float32(0))

    def chunk(given: tuple[Array, Array]) -> Array:
        key, offset = given
        numbers = offset + jnp.arange(CHUNK, dtype=jnp.uint32)
        left, right = jnp.split(threefry_2x32((key[0], key[1]), jnp.concatenate([jnp.zeros_like(numbers), numbers])), 2)
        mantissa = jnp.right_shift(left ^ right, np.uint32(9)) | np.uint32(0x3F800000)
        unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1)
        if kind == "uniform":
            return unit
        return jax.lax.erf_inv(jnp.maximum(low, unit * (np.float32(1) - low) + low))

    rows = jax.lax.map(chunk, (keys[np.repeat(np.arange(len(sizes)), chunks)], offsets)).reshape(-1)
    starts = np.cumsum([0, *chunks[:-1]]) * CHUNK
    return [rows[start : start + size] for start, size in zip(starts, sizes, strict=True)]


Source = Callable[[Key, Shape, Kind], Array]
_SOURCE: ContextVar[Source | None] = ContextVar("source of numbers", default=None)
"""Where `normal` and `uniform` have their numbers from, within a `Together`."""


@contextlib.contextmanager
def _drawing(source: Source) -> Iterator[None]:
    before = _SOURCE.set(source)
    try:
        yield
    finally:
        _SOURCE.reset(before)
