"""Workdirs of earlier versions, made before their code was changed, still decode and go on.

`tests/reference/workdirs/*.tar.xz` hold a run of four updates for each kind of model, written by commit f02697ce (29
November 2026), and what that commit made of six lines. Older checkpoints are refused.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from convs2s_jax.core.checksums import FIELD, seal
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints.digest import digest_of_record
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
    found = library.translate(translator, library.TextRequest(translator.cfg.search, LINES))
    for then, now in zip(expected, found, strict=True):
        assert now.best.text == then["hypotheses"][0]["text"]
        np.testing.assert_allclose(now.best.score, then["hypotheses"][0]["score"], rtol=1e-5)


@pytest.mark.parametrize("old", drills_but(KINDS, kept=["convs2s"]), indirect=True)
def test_an_old_run_goes_on(old):
    cfg = run_folder.load_config(old)
    train(dataclasses.replace(cfg, training=dataclasses.replace(cfg.training, max_steps=5)), old)
    assert (old / "checkpoints" / "5").is_dir()


@pytest.mark.parametrize("missing", ["checksum", "best"])
def test_older_checkpoints_are_refused_in_a_sentence_with_the_way_out(tmp_path, missing):
    workdir = unpacked("convs2s", tmp_path)
    path = workdir / "checkpoints" / "4" / "position" / "metadata"
    record = json.loads(path.read_text())
    del (record["digests"] if missing == "checksum" else record)[missing]
    if missing == "best":
        content = {name: value for name, value in record.items() if name != "digests"}
        digests = {**record["digests"], "position": digest_of_record(content)}
        record["digests"] = seal({name: value for name, value in digests.items() if name != FIELD})
    path.write_text(json.dumps(record))
    sentence = (
        r"(step 4|/4) is of a version from before 28 November 2026 \(.*\), which this version does not read: use "
        "commit f02697ce, which does, or train again in another workdir$"
    )
    with pytest.raises(UserError, match=sentence):
        train(run_folder.load_config(workdir), workdir)
