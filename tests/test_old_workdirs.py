"""Workdirs of earlier versions, made before their code was changed, still decode and go on.

`tests/reference/workdirs/*.tar.xz` hold a run of four updates for each kind of model, written by commit ac1c9cb (21
November 2026), and what decode.py of that commit made of six lines.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.loop import train
from convs2s_jax.translation import lines as library
from convs2s_jax.translation.translator import load
from tests.helpers import drills_but
from tests.workdirs import KINDS, LINES, unpacked


@pytest.fixture(params=drills_but(KINDS, kept=["convs2s", "recurrent"]))
def old(request, tmp_path) -> Path:
    return unpacked(request.param, tmp_path)


def test_an_old_workdir_gives_the_translations_it_gave_then(old):
    translator = load(old, tell=pytest.fail)
    expected = [json.loads(line) for line in (old / "translations.jsonl").read_text().splitlines()]
    found = library.translate(translator, translator.cfg.search, LINES)
    for then, now in zip(expected, found, strict=True):
        assert now.best.text == then["hypotheses"][0]["text"]
        np.testing.assert_allclose(now.best.score, then["hypotheses"][0]["score"], rtol=1e-5)


@pytest.mark.parametrize("old", drills_but(KINDS, kept=["convs2s"]), indirect=True)
def test_an_old_run_goes_on(old):
    cfg = run_folder.load_config(old)
    train(dataclasses.replace(cfg, training=dataclasses.replace(cfg.training, max_steps=5)), old)
    assert (old / "checkpoints" / "5").is_dir()
