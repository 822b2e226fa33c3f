"""Strict settings for every test: no silent promotion of types or ranks; warnings are errors (setup.cfg)."""

import gc
import os
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of the time of these tests, so it is done with little optimisation.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
FLAGS += " --xla_llvm_disable_expensive_passes=true"
if version("jax").startswith("0.10."):  # the older way to emit fusions compiles in two thirds of the time; 0.12 lost it
    FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"

from pathlib import Path  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Tracing makes many objects; to look through all of them after every 700 new ones takes a tenth of the time.
gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """A compiled program keeps several mappings of memory, of which a process may have 65,530: then XLA dies of it."""
    yield
    jax.clear_caches()


SHARED = Path(__file__).parents[2] / "shared"


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
