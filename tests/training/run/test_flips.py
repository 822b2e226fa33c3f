"""Everything that is read back is checked: a flipped bit or a cut file anywhere in a workdir changes no number.

A try damages one file of a copy of a workdir and uses the copy: it is loaded for decoding, or its run is continued
up to the next update. That ends in the exact result, in that of an earlier checkpoint with an announcement, or
in one sentence. All later numbers of a run follow from what is compared: state,
batch, rate, key, position and the token ids of all splits.
"""

import contextlib
import json
import multiprocessing
import random
import shutil
import signal
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import jax
import numpy as np
import pytest
from absl import logging

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import loop, opening, programs, run_folder
from convs2s_jax.training.run.checkpoints import restoring
from convs2s_jax.training.step import Step
from convs2s_jax.translation.translator import load
from tests import tiny

SEED = 16
NEVER_READ = ("train.log", "tensorboard", "samples", "lock")
PROCESSES = 2
SECONDS = 60
"""A try that takes longer counts as lost."""
CONTINUED = {"training__max_steps": 6, "training__save_every": 2, "training__validate_every": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A workdir with two checkpoints, to be copied."""
    workdir = tmp_path_factory.mktemp("flips") / "whole"
    loop.train(tiny.config(**{**CONTINUED, "training__max_steps": 4}), workdir)
    return workdir


class ReachedError(Exception):
    """Training has come to its first update."""


def summary(*things):
    """A checksum of arrays, texts and numbers in trees."""
    parts = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(things):
        if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        data = leaf if isinstance(leaf, str) else np.asarray(leaf)
        said = repr(data) if isinstance(data, str) else f"{data.dtype}{data.shape}"
        parts += [f"{path}{said}".encode(), b"" if isinstance(data, str) else data.tobytes()]
    return checksum(*parts)


def continued(workdir, told):
    """What determines the first update of a continued run and all after it."""
    seen = []
    prepare, restore = opening.prepare, restoring.restore

    def preparing(*args, **options):
        run = prepare(*args, **options)
        for split in (run.train, run.valid, run.test):
            seen.append([split.src.tokens, split.src.offsets, split.tgt.tokens, split.tgt.offsets])
        seen.append([run.vocabularies.src.fingerprint, run.vocabularies.tgt.fingerprint, repr(run.cfg)])
        return run

    def restored(*args, **options):
        found = restore(*args, **options)
        position = {name: value for name, value in found[1].items() if name != "digests"} if found else {}
        seen.append(repr(sorted(position.items())))
        return found

    def reached(_, state, batches, rate, key):
        seen.append([state, batches, rate, key])
        raise ReachedError

    tell = mock.patch.object(opening, "show", lambda sentence: told.append(sentence) or "")
    fast = mock.patch.object(programs, "compile_run", return_value=Step(None, None, None))  # is not reached
    with (
        mock.patch.object(opening, "prepare", preparing),
        mock.patch.object(restoring, "restore", restored),
        mock.patch.object(programs, "update", reached),
        tell,
        fast,
        pytest.raises(ReachedError),
    ):
        loop.train(tiny.config(**CONTINUED), workdir)
    return summary(seen)


def decoded(workdir, told):
    """What determines all translations."""
    found = load(workdir, tell=told.append)
    names = [found.vocabularies.src.fingerprint, found.vocabularies.tgt.fingerprint]
    return summary(found.params, names, repr(found.models), repr(found.cfg.search), repr(found.cfg.data), found.steps)


USES = {"decode": decoded, "train": continued}
NOT_READ = {"decode": ("cache", "metrics.jsonl", "facts.json"), "train": ()}


def groups_of(workdir, use):
    """The files that a use reads, by what they hold: each group gets the same share of the tries."""
    groups = {}
    for path in sorted(path.relative_to(workdir) for path in workdir.rglob("*") if path.is_file()):
        if path.parts[0] not in NEVER_READ + NOT_READ[use] and (workdir / path).stat().st_size:
            depth = 3 if path.parts[0] == "checkpoints" else 1
            groups.setdefault(path.parts[:depth], []).append(path)
    return list(groups.values())


def expected(whole, folder, use):
    """The exact result, and what may come with an announcement: those without one of the checkpoints."""
    results = []
    for gone in ((), (4,), (2,)):
        workdir = shutil.copytree(whole, folder / f"without {gone}")
        for step in gone:
            shutil.rmtree(workdir / "checkpoints" / str(step))
        results.append(USES[use](workdir, []))
    return results


@contextlib.contextmanager
def at_most(seconds):
    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damage(path, rng, cut):
    data = bytearray(path.read_bytes())
    if cut:
        where = rng.randrange(len(data))
        data = data[:where]
    else:
        where = rng.randrange(8 * len(data))
        data[where // 8] ^= 1 << where % 8
    path.write_bytes(data)
    return f"{'cut at byte' if cut else 'bit'} {where}"


def lost(use, results, workdir):
    """Why a use of a damaged workdir is a loss, or "" where it is none."""
    told = []
    try:
        with at_most(SECONDS):
            found = USES[use](workdir, told)
    except UserError as error:
        return "" if "\n" not in str(error) else f"more than a sentence: {error}"
    except BaseException as error:  # a traceback, a failure of pytest.raises, or too late
        return f"{type(error).__name__}: {str(error)[:300]}"
    if found == results[0]:
        return ""
    if found not in results:
        return f"another result; told {told}"
    return "" if any("damaged" in sentence for sentence in told) else f"an earlier checkpoint in silence; told {told}"


def tries(whole, folder, use, *, flips, cuts, seed=SEED):
    """Damage copies of a workdir. Returns what was lost."""
    rng, losses = random.Random(seed), []
    results, groups = expected(whole, folder, use), groups_of(whole, use)
    for i in range(flips + cuts):
        workdir = folder / "damaged"
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.copytree(whole, workdir)
        path = rng.choice(rng.choice(groups))
        how = damage(workdir / path, rng, i < cuts)
        if why := lost(use, results, workdir):
            losses.append(f"{use}, {path}, {how}: {why}")
    return losses


def test_an_edited_configuration_is_refused_unless_its_checksum_is_deleted(whole, tmp_path):
    path = tmp_path / "config.json"
    values = json.loads((whole / "config.json").read_text(encoding="utf-8"))
    assert values["search"]["beam_size"] == 2
    values["search"]["beam_size"] = 3
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(
        UserError, match=rf"^{path} is damaged or was edited \(.*\): restore it, and change fields with"
    ):
        run_folder.load_config(tmp_path)
    del values["checksum"]
    path.write_text(json.dumps(values), encoding="utf-8")
    assert run_folder.load_config(tmp_path).search.beam_size == 3


def quietly(whole, folder, use, flips, cuts, seed):
    """`tries` in a process of its own."""
    logging.set_verbosity(logging.FATAL)
    folder.mkdir()
    return tries(whole, folder, use, flips=flips, cuts=cuts, seed=seed)


@pytest.mark.drill
@pytest.mark.parametrize(("use", "flips", "cuts"), [("decode", 1000, 300), ("train", 1000, 300)])
def test_flipped_bits_and_cut_files_anywhere_in_a_workdir_change_no_number(whole, tmp_path, tally, use, flips, cuts):
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        started = [
            pool.submit(quietly, whole, tmp_path / f"{i}", use, flips // PROCESSES, cuts // PROCESSES, SEED + i)
            for i in range(PROCESSES)
        ]
        losses = [loss for one in started for loss in one.result()]
    for loss in losses:
        print(loss)  # noqa: T201
    tally(tries=flips + cuts, losses=len(losses))
