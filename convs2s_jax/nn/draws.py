"""Random numbers for parameter initialisation, sampled separately for each kernel or in one loop for a whole model.

A program that samples each kernel separately contains the code of the generator once for each kernel shape, and XLA
compiles little else. For a GPU this took 24 seconds. `BatchedInit` contains it once for each distribution.
For this, initialisers sample with `normal` and `uniform` of this module, outside `jit`, `vmap` and `scan`.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state

from convs2s_jax.core.compiler_options import fast_compile_options, is_traced, unless_set
from convs2s_jax.nn.dropout import THREEFRY
from convs2s_jax.nn.types import Array, Key

T = TypeVar("T")
Distribution = Literal["normal", "uniform"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)
Shape = tuple[int, ...]

FOR_KEYS = {**fast_compile_options(), "xla_backend_optimization_level": 0}
"""XLA options for the program of the keys, which has integers only and runs once on the host."""
CHUNK = 2**15
"""Numbers per iteration. Each draw is padded to a multiple, so a larger chunk would waste more on small draws."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Bits by which threefry-2x32 rotates a word in each round of four, alternating."""


class Request(NamedTuple):
    """The shape and distribution of one draw.

    Attributes:
      shape: shape of the numbers.
      distribution: distribution of the numbers.
    """

    shape: Shape
    distribution: Distribution


Generator = Callable[[Key, Request], Array]
"""(key, request) -> unscaled numbers: uniform in [0, 1), or normal divided by the square root of 2."""
_GENERATOR: ContextVar[Generator | None] = ContextVar("generator", default=None)
"""The source of numbers for `normal` and `uniform` within a `BatchedInit`; None elsewhere."""


def normal(key: Key, shape: Shape) -> Array:
    """Sample from N(0, 1), with the same numbers as `jax.random.normal`."""
    generator = _GENERATOR.get()
    if generator is None:
        return jax.random.normal(key, shape)
    return np.float32(math.sqrt(2)) * generator(key, Request(shape, "normal"))


def uniform(key: Key, shape: Shape, bound: float) -> Array:
    """Sample from U(-bound, bound), with the same numbers as `jax.random.uniform`."""
    generator = _GENERATOR.get()
    if generator is None:
        return jax.random.uniform(key, shape, minval=-bound, maxval=bound)
    low, high = np.float32(-bound), np.float32(bound)
    return jnp.maximum(low, generator(key, Request(shape, "uniform")) * (high - low) + low)


def batched() -> bool:
    """Whether this runs within a `BatchedInit`, where equal layers do not need their own loop."""
    return _GENERATOR.get() is not None


def can_be_batched() -> bool:
    """Whether `BatchedInit` works in this process: with JAX's default generator, in float32, with a CPU device."""
    config: Any = jax.config
    generator = config.jax_default_prng_impl == "threefry2x32" and config.jax_threefry_partitionable
    return bool(generator and not config.jax_enable_x64 and host() is not None)


def host() -> jax.Device | None:
    """Return a CPU device of this process; None if JAX_PLATFORMS excludes them."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def initialise(init: Callable[..., T], key: Key, *arguments: Hashable) -> T:
    """Compute init(key, *arguments) with the two programs of `BatchedInit`, which are kept for further calls.

    Called directly, `init` would compile one program for each operation and shape. It is called directly within another
    program or transformation, within `jax.set_mesh` or `jax.disable_jit`, with a key on several devices, with another
    generator, with 64 bits, and if it samples within `jit`, `vmap` or `scan`.

    Args:
      init: (key, *arguments) -> parameters, a tree of arrays. What it calls must not change.
      key: one typed key. It decides on which device the parameters are.
      arguments: configurations and sizes.
    """
    if not is_traced(key) and not batched() and can_be_batched() and _is_plain(key):
        with contextlib.suppress(NestedDrawError):
            keys, parameters = _programs(init, arguments)
            return parameters(key, np.asarray(keys(jax.device_put(key, host()))))
    return init(key, *arguments)


def _is_plain(key: Key) -> bool:
    """Whether programs of this key are compiled, for one device, and sample with JAX's default generator."""
    config: Any = jax.config
    elsewhere = config.jax_disable_jit or not jax.sharding.get_abstract_mesh().empty
    return not elsewhere and jax.random.key_impl(key) == THREEFRY and len(key.sharding.device_set) == 1


@functools.lru_cache(maxsize=64)
def _programs(init: Callable[..., T], arguments: tuple[Hashable, ...]) -> tuple[Callable[..., Any], Callable[..., T]]:
    """Return the programs of the keys and of the parameters."""
    made = BatchedInit(lambda key: init(key, *arguments))
    # the key, even if unused, decides on which device the parameters are
    return jax.jit(made.keys, compiler_options=unless_set(FOR_KEYS)), jax.jit(made.parameters, keep_unused=True)


class NestedDrawError(ValueError):
    """An initialiser samples within `jit`, `vmap` or `scan`, where `BatchedInit` cannot note or replace its samples."""

    def __init__(self) -> None:
        super().__init__("an initialiser samples within jit, vmap or scan; call normal and uniform of nn.draws outside")


class BatchedInit(Generic[T]):
    """An initialiser in two steps: compute the keys of its draws, then the parameters from them.

    `init(key)` and `parameters(key, keys(key))` return the same numbers. Keys are integers, and the program that
    computes them is best compiled for the host with minimum optimisation. The other program has one loop for each
    distribution.
    """

    def __init__(self, init: Callable[[Key], T]) -> None:
        """Trace an initialiser.

        Args:
          init: key -> parameters, a tree of arrays. Numbers that it samples with functions other than `normal` and
            `uniform` of this module are sampled separately.

        Raises:
          NestedDrawError: `init` samples within `jit`, `vmap` or `scan`.
        """
        self._init = init
        self._requests = list[Request]()

        def traced(key: Key) -> None:
            self._requests = [request for _, request in _draws_of(init, key)]

        jax.eval_shape(traced, jax.random.key(0))

    def keys(self, key: Key) -> Array:
        """Return the keys of all draws, in the order in which `init` makes them: [draws, 2] uint32.

        Raises:
          ValueError: `init` makes different draws each time.
        """
        draws = _draws_of(self._init, key)
        _check([request for _, request in draws], self._requests)
        return jnp.stack([jax.random.key_data(each) for each, _ in draws]) if draws else jnp.zeros((0, 2), jnp.uint32)

    def parameters(self, key: Key, keys: Array) -> T:
        """Compute init(key), given the keys of its draws. Raises ValueError as `keys` does."""
        numbers, used = dict[int, Array](), list[Request]()
        for distribution in DISTRIBUTIONS:
            places = [i for i, request in enumerate(self._requests) if request.distribution == distribution]
            if places:
                sizes = [math.prod(self._requests[i].shape) for i in places]
                numbers.update(zip(places, _in_one_loop(keys[np.array(places)], sizes, distribution), strict=True))

        def take(_key: Key, request: Request) -> Array:
            used.append(request)
            _check([request], self._requests[len(used) - 1 : len(used)])
            return numbers[len(used) - 1].reshape(request.shape)

        with _drawing_by(take):
            made = self._init(key)
        _check(used, self._requests)
        return made


def _check(found: Sequence[Request], expected: Sequence[Request]) -> None:
    if list(found) != list(expected):
        raise ValueError("an initialiser makes different draws each time")


def _draws_of(init: Callable[[Key], object], key: Key) -> list[tuple[Key, Request]]:
    """Return each draw of init(key), as its key and request."""
    found = list[tuple[Key, Request]]()
    outside = get_opaque_trace_state()

    def note(key: Key, request: Request) -> Array:
        if get_opaque_trace_state() != outside:
            raise NestedDrawError
        found.append((key, request))
        return jnp.zeros(request.shape)

    with _drawing_by(note):
        init(key)
    return found


def _in_one_loop(keys: Array, sizes: Sequence[int], distribution: Distribution) -> list[Array]:
    """Sample the draws with these keys [n, 2] and sizes, as a `Generator` does.

    The generator is counter-based (threefry, Salmon et al. 2011). Number i of a key depends only on the key and i, so
    any piece of a draw can be computed. u = 23 random bits in [0, 1); a normal number is erf^-1(2 u - 1), and callers
    apply the square root of 2.
    """
    chunks = [-(-size // CHUNK) for size in sizes]
    offsets = np.concatenate([np.arange(n, dtype=np.uint32) * np.uint32(CHUNK) for n in chunks])
    low = np.nextafter(np.float32(-1), np.float32(0))

    def chunk(given: tuple[Array, Array]) -> Array:
        key, offset = given
        numbers = offset + jnp.arange(CHUNK, dtype=jnp.uint32)
        left, right = _threefry(key, numbers)
        mantissa = (left ^ right) >> np.uint32(9) | np.uint32(0x3F800000)
        unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1)
        if distribution == "uniform":
            return unit
        return jax.lax.erf_inv(jnp.maximum(low, unit * (np.float32(1) - low) + low))

    rows = jax.lax.map(chunk, (keys[np.repeat(np.arange(len(sizes)), chunks)], offsets)).reshape(-1)
    starts = np.cumsum([0, *chunks[:-1]]) * CHUNK
    return [rows[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _threefry(key: Array, numbers: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): encrypt the counters (0, number).

    JAX's own function is a loop on CPUs, which keeps programs with many calls small. Without it, a program with one
    call runs twice as fast.

    Args:
      key: [2] uint32.
      numbers: [n] uint32.

    Returns:
      Both words of the encrypted counters, [n] uint32 each.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    left, right = jnp.broadcast_to(keys[0], numbers.shape), numbers + keys[1]
    for turn in range(5):
        for rotation in _ROTATIONS[turn % 2]:
            left = left + right
            right = left ^ (right << np.uint32(rotation) | right >> np.uint32(32 - rotation))
        left, right = left + keys[(turn + 1) % 3], right + (keys[(turn + 2) % 3] + np.uint32(turn + 1))
    return left, right


@contextlib.contextmanager
def _drawing_by(generator: Generator) -> Iterator[None]:
    before = _GENERATOR.set(generator)
    try:
        yield
    finally:
        _GENERATOR.reset(before)
