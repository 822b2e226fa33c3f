"""Strict settings for every test: no silent promotion of types or ranks; warnings are errors (setup.cfg)."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts commands in the background without it
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # two workers plan at once
# Compiling is most of the time of these tests, so it is done with little optimisation.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
FLAGS += " --xla_llvm_disable_expensive_passes=true"
if version("jax").startswith("0.10."):  # the older way to emit fusions compiles in two thirds of the time; 0.12 lost it
    FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if FLAGS not in os.environ.get("XLA_FLAGS", ""):  # workers of pytest-xdist have them from the process that starts them
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
# One compilation cache for the session: workers and the processes that tests start inherit it. `CompileCounter` counts
# a program that comes out of the cache like one that is compiled, so tests of compilations are not disturbed.
OWN_CACHE = "JAX_COMPILATION_CACHE_DIR" not in os.environ
if OWN_CACHE:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="convs2s_jax-compiled-")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from convs2s_jax.core import config  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Which examples are tried, and whether they pass, does not depend on chance or on the machine's speed.
settings.register_profile("here", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")
# Tracing makes many objects; to look through all of them after every 700 new ones takes a tenth of the time.
gc.set_threshold(50_000, 20, 50)

RESIDENT = 2.5e9
"""Bytes of memory from which on a worker drops its compiled programs, so that two fit into a machine of 8 GB.

Programs keep mappings of memory too, of which a process may have 65,530: at 2.9 GB a worker had 13,000.
"""


def pytest_unconfigure() -> None:
    if OWN_CACHE:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Compiled programs are dropped after a module where they take much memory; the cache on disk keeps them."""
    yield
    memory = Path("/proc/self/statm")
    if not memory.exists() or int(memory.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > RESIDENT:
        jax.clear_caches()


SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture
def own_kinds(monkeypatch):
    """Kinds that a test registers are gone after it."""
    monkeypatch.setattr(config, "_ADDED", {})


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of fairseq's numbers; tests that need the whole set are skipped where it is absent."""
    folder = SHARED / "golden"
    if not folder.is_dir():
        pytest.skip("the whole golden set lies in ../shared/golden, which is absent here")
    return folder


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of real corpora; tests that need them are skipped where it is absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the real corpora lie in ../shared/data, which is absent here")
    return folder


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Counts the tries of a drill and what was lost, for the table of `make drills`: `tally(tries=20)`."""

    def count(*, tries: int, losses: int = 0) -> None:
        record_property("tries", tries)
        record_property("losses", losses)
        assert losses == 0, f"{losses} of {tries} tries lost something"

    return count
