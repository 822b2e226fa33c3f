"""A mixture of corpora: shares by weight, each row once a cycle, weights that change, and the same run after a stop."""

import itertools
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import PAD
from convs2s_jax.data import parallel_text, plan, vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.prepare import prepare
from convs2s_jax.training.run.programs import Programs
from tests import tiny


def endless(rows, seed, part):
    """The sequence that a part is read from."""
    for cycle in itertools.count(1):
        yield from np.random.default_rng([seed, part + 1, cycle]).permutation(rows).tolist()


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    weights=st.lists(st.floats(0, 9), min_size=4, max_size=4),
    seed=st.integers(0, 9),
)
def test_each_part_has_its_share_and_each_of_its_rows_once_before_any_twice(sizes, weights, seed):
    weights = [1.0, *weights][: len(sizes)]
    lines = [2 * size for size in sizes]  # every second line is usable
    rows = np.arange(0, sum(lines), 2, dtype=np.int32)
    bounds = [0, *np.cumsum(lines).tolist()]
    parts = [rows[(rows >= a) & (rows < b)] for a, b in itertools.pairwise(bounds)]
    streams = [endless(part, seed, i) for i, part in enumerate(parts)]
    read = [list[int]() for _ in parts]
    for epoch in range(1, 6):
        mixture = plan.mixed(rows, lines, weights, seed=seed, epoch=epoch)
        assert len(mixture) == len(rows)
        owners = np.searchsorted(bounds, mixture, side="right") - 1
        for i, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            own = mixture[owners == i].tolist()
            assert abs(len(own) - len(rows) * weight / sum(weights)) < 1
            assert own == [*itertools.islice(streams[i], len(own))]
            read[i] += own
            uses = [read[i].count(row) for row in part]
            assert max(uses) - min(uses) <= 1


LINES = {name: [f"{name} {i} {'x' * (i % 4)}" for i in range(n)] for name, n in (("a", 60), ("b", 20), ("valid", 9))}
LINES["b"][3] = " "  # without a source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    for name, lines in LINES.items():
        for side in ("in", "out"):
            (place / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
        (place / f"{name}.out").write_text("".join(f"out {i}\n" for i in range(len(lines))))
    return place


def config(folder, first=3.0, schedule=(), tag="<bt>", **more):
    a, b = ([[str(folder / f"{name}.{side}") for side in ("in", "out")]] for name in "ab")
    parts = [{"files": a, "weight": first, "schedule": schedule}, {"files": b, "tag": tag}]
    values = {"data__mixture": parts, "data__vocabulary": {"kind": "unigram", "src_size": 60, "tgt_size": 60}}
    return tiny.config(**{**tiny.files(folder), **values, **more})


def test_parts_are_read_once_tagged_and_told_of_whatever_their_weights(folder, tmp_path, monkeypatch):
    told, reads = [], []
    read = parallel_text.read
    monkeypatch.setattr(parallel_text, "read", lambda cfg, name, **more: reads.append(name) or read(cfg, name, **more))
    run = prepare(config(folder), tmp_path, told.append)
    cached = {*(tmp_path / "cache").rglob("*")}
    other = prepare(config(folder, first=1.0, schedule=[(9, 0.5)]), tmp_path, told.append)
    assert {*(tmp_path / "cache").rglob("*")} == cached
    assert reads.count("train") == 1
    assert other.train.text.parts == run.train.text.parts == (60, 20)
    assert run.vocabularies.src.decode(run.train.src[60]) == "<bt> b 0"
    assert run.vocabularies.src.encode(["<bt> b"])[0].count(run.vocabularies.src.encode(["<bt>"])[0][-1]) == 1
    assert run.vocabularies.src.token(run.vocabularies.src.encode(["<bt>"])[0][-1]) == "<bt>"
    assert len(run.rows) == 79
    a, b = (str(folder / f"{name}.out") for name in "ab")
    assert f"mixture: {a} 60 pairs, 75.0 %; {b} <bt> 19 pairs, 25.0 %" in told
    assert f"mixture: {a} 60 pairs, 50.0 %; {b} <bt> 19 pairs, 50.0 %; shares change at updates 9" in told
    both = {"kind": "unigram", "src_size": 60, "tgt_size": 60, "symbols": ["<bt>", "<x>"]}
    for tag in ("<bt>", "<x>"):  # also where the vocabulary stays the same
        run = prepare(config(folder, tag=tag, data__vocabulary=both), tmp_path, told.append)
        assert run.vocabularies.src.decode(run.train.src[60]) == f"{tag} b 0"


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.drill)])
def test_a_stop_within_an_epoch_or_at_a_change_of_weights_changes_nothing(devices, folder, tmp_path, monkeypatch):
    """The part without a tag has no weight from update 12 on, which is within an epoch, and some again from 20 on."""
    seen, update = [], Programs.update

    def recorded(programs, state, batches, *rest):
        rows = np.concatenate([np.asarray(batch.src)[:, :6] for batch in batches])
        seen.append(rows[(rows != PAD).any(axis=1)].tolist())  # without rows of padding
        return update(programs, state, batches, *rest)

    def trained(workdir, *steps, corpus=folder, mesh=devices, schedule=((12, 0.0), (20, 1.0))):
        seen.clear()
        more = {"mesh__data": mesh, "data__batch": {"tokens": 128, "shapes": 1, "accumulate": 2}}
        for step in steps:
            train(config(corpus, schedule=schedule, **more, training__max_steps=step), workdir)
        return tiny.digests(workdir, steps[-1]), [*seen]

    monkeypatch.setattr(Programs, "update", recorded)
    whole = trained(tmp_path / "whole", 24)
    epochs = {line["step"]: line["epoch"] for line in tiny.metrics(tmp_path / "whole") if line["split"] == "train"}
    assert [epochs[step] for step in (9, 10, 11, 12, 18, 19, 20)] == [3, 4, 4, 5, 7, 7, 8]  # of three updates, or cut
    tag = prepare(config(folder), tmp_path / "whole", lambda _: None).vocabularies.src.encode(["<bt>"])[0][-1]
    shares = [sum(tag in row for row in rows) / len(rows) for rows in whole[1]]
    assert [i for i, share in enumerate(shares, 1) if share == 1] == [*range(12, 20)]
    assert np.mean(shares[:9]) == pytest.approx(0.25, abs=0.05)
    assert np.mean(shares[19:]) == pytest.approx(0.5, abs=0.1)
    moved = shutil.copytree(folder, tmp_path / "moved")
    trained(tmp_path / "parts", 5)
    assert (trained(tmp_path / "parts", 11, 14, 19, 24, corpus=moved)) == (whole[0], whole[1][5:])
    with pytest.raises(UserError, match=r"data.mixture.0.schedule is \[\[12, 0.0\], \[20, 1.0\]\] there and \[\] here"):
        trained(tmp_path / "parts", 25, schedule=())
    if devices == 8:
        trained(tmp_path / "other", 9)
        assert trained(tmp_path / "other", 24, mesh=1)[1] == whole[1][9:]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"corpus": "cldr"}, r"data.mixture is set, but corpus is 'cldr': use 'files'$"),
        ({"hold_out": 0.1}, "hold_out is 0.1: list files for validation, or use 0$"),
        ({"files": {"train": [("c", "d")]}}, "files.train is set: list its files as a part of the mixture$"),
        ({"src": ""}, "tags need sources, and src is not set$"),
        ({"mixture": [{"files": []}]}, r"data.mixture\[0\].files is empty: list the files of this part, or remove it$"),
        ({"mixture": [{"files": [("a", "b")], "weight": -1}]}, "the weight -1.0 is not between 0 and 1e9$"),
        ({"mixture": [{"files": [("a", "b")], "tag": "a b"}]}, "tag is 'a b': use text without white space"),
        ({"mixture": [{"files": [("a", "b")], "schedule": [(5, 1), (5, 2)]}]}, r"updates \[5, 5\]: use ascending"),
        ({"mixture": [{"files": [("a", "b")], "schedule": [(5, 0)]}]}, "no weight above 0 from update 5 on: raise one"),
    ],
)
def test_what_is_no_mixture_is_refused(more, message):
    values = {"src": "de", "tgt": "en", "mixture": [{"files": [("a", "b")], "tag": "<bt>"}], **more}
    with pytest.raises(UserError, match=message):
        build(DataConfig, values, "data")


def test_a_mixture_that_the_corpus_or_the_vocabulary_does_not_allow_is_refused(folder, tmp_path):
    def prepared(**more):
        return prepare(config(tmp_path / "corpus", **more), tmp_path / "run", lambda _: None)

    shutil.copytree(folder, tmp_path / "corpus")
    made = prepared(tag="").vocabularies
    vocabulary.save(made, tmp_path / "vocab")
    with pytest.raises(UserError, match="the tag '<bt>', which the source vocabulary does not contain: use one"):
        prepared(data__vocabulary={"dir": str(tmp_path / "vocab")})
    (tmp_path / "corpus" / "b.out").write_text("\n" * 20)
    with pytest.raises(UserError, match=r"data.mixture\[1\]: no training pairs of .*b.out <bt> are usable; remove it"):
        prepared()
    for side in ("in", "out"):
        shutil.copy(folder / f"a.{side}", tmp_path / "corpus" / f"train.{side}")
    with pytest.raises(UserError, match=r"data.mixture is set, but .*train.out would not be read: list it as a part"):
        prepared()
