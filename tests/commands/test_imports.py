"""What commands import: a start is mostly imports, so a library that few need is imported where it is used."""

import subprocess
import sys

import pytest

from tests import tiny

DECODE = "from convs2s_jax.commands import decode; decode.console(['decode.py', '--help'])"
MISTAKE = "from convs2s_jax.commands import decode; decode.console(['decode.py', '--wokdir=a'])"
LIST = "from convs2s_jax.commands import config; config.console(['convs2s config'])"
SHORTLIST = "from convs2s_jax.commands import shortlist; shortlist.console(['convs2s shortlist', '--help'])"
TRANSLATING = "from convs2s_jax.translation.jobs import decoding, interactive"
RARE = {"rouge_score", "sacrebleu", "tensorboardX", "tensorflow", "tensorflow_datasets", "torch"}


@pytest.mark.parametrize(
    ("code", "libraries"),
    [
        (DECODE, {"jax", "numpy", "flax", "orbax", *RARE}),
        (MISTAKE, {"jax", "numpy", "flax", "orbax", *RARE}),
        (LIST, {"jax", "numpy", "flax", "orbax", *RARE}),
        (SHORTLIST, {"jax", "numpy", "flax", "orbax", *RARE}),
        (TRANSLATING, RARE),
    ],
    ids=["help", "a mistake in the flags", "a list", "help of shortlists", "translating"],
)
def test_nothing_is_imported_that_is_not_needed(code, libraries):
    script = (
        f"import atexit, sys; atexit.register(lambda: print('imported', *sorted({libraries!r} & set(sys.modules))))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", f"{script}; {code}"], cwd=tiny.ROOT, capture_output=True, text=True, check=False
    )
    assert ended.stdout.splitlines()[-1:] == ["imported"], ended.stderr
