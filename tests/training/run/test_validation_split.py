"""Validation sets: held out from the training text, of their own files, or none."""

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import corpora, parallel_text
from convs2s_jax.data.config import DataConfig
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.prepare import prepare
from convs2s_jax.translation.translator import load
from tests import tiny
from tests.training.run.test_prepare import options, write_train


@pytest.fixture
def folder(tmp_path):
    write_train(tmp_path)
    return tmp_path


def config(folder, **values):
    return DataConfig(src="in", tgt="out", dir=str(folder), **values)


def test_a_share_of_train_is_held_out_and_no_line_is_in_both(folder):
    whole = parallel_text.read(config(folder), "train")
    kept, held = (parallel_text.read(config(folder, hold_out=0.1), split) for split in ("train", "valid"))
    assert (len(kept), len(held)) == (180, 20)
    pairs = [sorted(zip(text.src, text.tgt, strict=True)) for text in (whole, kept, held)]
    assert sorted(pairs[1] + pairs[2]) == pairs[0]
    assert held == parallel_text.read(config(folder, hold_out=0.1), "valid")
    assert list(held.src) != list(whole.src[:20])
    place = whole.tgt.index(held.tgt[7]) + 1
    assert whole.tgt.count(held.tgt[7]) == 1
    assert held.where(7) == f"{folder / 'train.out'}, line {place}, held out for validation"
    assert kept.where(kept.tgt.index(whole.tgt[-1])) == f"{folder / 'train.out'}, line 200"


def repeated(folder, times):
    """The configuration of a corpus with all its lines repeated, as "* 3" in data.files does."""
    pairs = ((str(folder / "train.in"), str(folder / "train.out")),)
    return DataConfig(src="in", tgt="out", files=corpora.SplitFiles(train=pairs * times), hold_out=0.1)


@pytest.mark.parametrize("times", [1, 3])
def test_no_copy_of_a_held_out_pair_is_trained_on(folder, times):
    """Without copies the lines are those that numpy draws, as ever; with copies as many lines leave the training."""
    train, valid = parallel_text.read_train_and_valid(repeated(folder, times))
    assert not {*zip(train.src, train.tgt, strict=True)} & {*zip(valid.src, valid.tgt, strict=True)}
    assert len({*zip(valid.src, valid.tgt, strict=True)}) == len(valid)
    assert valid.copies == (times - 1) * len(valid)
    assert len(train) == 200 * times - len(valid) - valid.copies
    assert 0.09 * 200 < len(valid) <= 20
    assert [row + 1 for row in valid.rows] == [
        int(valid.where(i).split(" line ")[1].split(",")[0]) for i in range(len(valid))
    ]
    if times == 1:
        assert list(valid.rows) == sorted(np.random.default_rng(0).permutation(200)[:20])


def test_a_frequent_pair_leaves_the_validation_set_its_size(folder):
    """A pair of a third of all lines is not held out; where each pair has too many lines, the rarest is."""
    for side in ("in", "out"):
        path = folder / f"train.{side}"
        path.write_text(path.read_text() + "yes\n" * 100)
    train, valid = parallel_text.read_train_and_valid(config(folder, hold_out=0.1))
    assert "yes" not in valid.src
    assert 15 <= len(valid) <= 30
    assert len(train) + len(valid) == 300
    for side in ("in", "out"):
        (folder / f"train.{side}").write_text("yes\n" * 90 + "no\n" * 10)
    train, valid = parallel_text.read_train_and_valid(config(folder, hold_out=0.05))
    assert (valid.src, {*train.src}, valid.copies) == (["no"], {"yes"}, 9)


def test_what_is_held_out_and_what_a_validation_file_shares_with_training_is_told(folder, tmp_path):
    told = []
    values = options(folder, data__hold_out=0.1, data__files={"train": repeated(folder, 2).files.train})
    found = prepare(tiny.config(**values), tmp_path / "run", told.append)
    count = len(found.valid.text)
    assert f"held out for validation: {count} pairs; {count} copies of them are left out" in told
    assert not any("also in the training text" in sentence for sentence in told)
    for side in ("in", "out"):
        text = (folder / f"train.{side}").read_text()
        (folder / f"train.{side}").write_text(f"{text}\n")
        first = text.splitlines()[0]
        (folder / f"valid.{side}").write_text(f"{first}\nw1 w9\n\n{first}\n")
    prepare(tiny.config(**options(folder)), tmp_path / "run", told.append)
    assert any(sentence.startswith("valid: 2 of 4 pairs are also in the training text, so ") for sentence in told)


def test_what_cannot_be_held_out_is_refused(folder):
    for side in ("in", "out"):
        (folder / f"train.{side}").write_text("w1\nw1\n")
    with pytest.raises(UserError, match=r"from train, whose 2 lines are all the same pair: add a different one$"):
        parallel_text.read(config(folder, hold_out=0.1), "train")


def test_training_goes_without_validation_and_the_last_parameters_count(folder, tmp_path):
    workdir = tmp_path / "run"
    train(tiny.config(**options(folder, data__hold_out=0, training__validate_every=2)), workdir)
    assert {line["split"] for line in tiny.metrics(workdir)} == {"train"}
    assert load(workdir, tell=print).steps == ((3,),)
