"""Labels as a vocabulary, and corpora that have labels."""

import gzip

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import cldr, corpora, parallel_text
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.parallel_text import ParallelText


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_tsv_has_label_tab_text(tmp_path, ending):
    text = "good\ta nice\tday\n bad \t\n"
    data = gzip.compress(text.encode()) if ending else text.encode()
    (tmp_path / f"train.tsv{ending}").write_bytes(data)
    cfg = DataConfig(corpus="tsv", dir=str(tmp_path))
    found = parallel_text.read(cfg, "train")
    assert (list(found.src), list(found.tgt)) == (["a nice\tday", ""], ["good", "bad"])
    assert found.where(1) == f"{tmp_path}/train.tsv{ending}, line 2"
    assert len(parallel_text.read(cfg, "test", optional=True)) == 0
    with pytest.raises(
        UserError, match=f"^there is no {tmp_path}/valid.tsv and no {tmp_path}/valid.tsv.gz; set data.hold_"
    ):
        parallel_text.read(cfg, "valid")
    with pytest.raises(UserError, match=r"^data.dir is not set: set it to the folder of train\.tsv$"):
        parallel_text.read(DataConfig(corpus="tsv"), "train")


def test_lines_are_named_in_the_file_that_holds_them():
    text = ParallelText("abcde", "vwxyz", "train", files=(("one", 2), ("two", 3)))
    assert [text.where(i) for i in (0, 1, 2, 4)] == ["one, line 1", "one, line 2", "two, line 1", "two, line 3"]
    assert ParallelText("ab", "cd", "valid").where(1) == "valid split, line 2"


def test_kinds_of_phrases_are_balanced_disjoint_and_the_same_every_time():
    cfg = cldr.CldrConfig(train=900, valid=60, test=60)
    made = cldr.generate_kinds("en", cfg)
    assert made == cldr.generate_kinds("en", cfg)
    texts = [set(made[name][0]) for name in ("train", "valid", "test")]
    assert [len(part) for part in texts] == [900, 60, 60]
    assert len(set.union(*texts)) == 1020
    kinds = made["train"][1]
    assert set(kinds) == set(cldr.PHRASES)
    assert max(map(kinds.count, cldr.PHRASES)) < 3 * min(map(kinds.count, cldr.PHRASES))
    assert parallel_text.read(DataConfig(corpus="cldr_kinds", src="en", cldr=cfg), "valid").tgt == made["valid"][1]


@pytest.mark.parametrize("share", [0.0, 0.1, None])
def test_a_tsv_without_lines_is_refused(tmp_path, share):
    (tmp_path / "train.tsv").write_bytes(b"")
    with pytest.raises(UserError, match=r"^the train split of the corpus is empty: it needs at least one line$"):
        parallel_text.read_train_and_valid(DataConfig(corpus="tsv", dir=str(tmp_path), hold_out=share))


def tsv(folder, lines):
    (folder / "train.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in lines))
    return DataConfig(corpus="tsv", dir=str(folder), hold_out=0.2)


def test_a_label_is_not_held_out_with_all_its_lines(tmp_path):
    """Otherwise the same lines as of parallel text leave; a label that does not occur in training is refused."""
    lost = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lines = [(f"text {rng.integers(25)}", f"label {int(rng.exponential(4))}") for _ in range(rng.integers(12, 40))]
        train, valid = parallel_text.read_train_and_valid(tsv(tmp_path, lines))
        held = list(zip(valid.src, valid.tgt, strict=True))
        rest = [line for line in lines if line not in held]
        assert list(zip(train.src, train.tgt, strict=True)) == rest
        assert held == [line for i, line in enumerate(lines) if line in held and line not in lines[:i]]
        assert 1 <= len(lines) - len(rest) <= round(0.2 * len(lines))
        assert {label for _, label in held} <= {label for _, label in rest}
        text = corpora.LinePairs([text for text, _ in lines], [label for _, label in lines])
        plain = parallel_text._cut(text, 0.2, labelled=False)
        if {*plain["valid"].tgt} <= {*plain["train"].tgt}:
            assert list(zip(plain["valid"].src, plain["valid"].tgt, strict=True)) == held
        else:
            lost += 1
    assert lost > 10


def test_labels_of_one_text_each_are_held_out_as_parallel_text(tmp_path):
    """They may be those of another run, whose list has the label."""
    cfg = tsv(tmp_path, [("a", "x"), ("b", "y"), ("c", "z")])
    train, valid = parallel_text.read_train_and_valid(cfg)
    assert (len(train), len(valid)) == (2, 1)
