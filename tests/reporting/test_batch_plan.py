"""The batch plan of a report is the one that training uses, counted by loops."""

import json

import numpy as np
import pytest

from convs2s_jax.data import plan, tokens_on_disk
from convs2s_jax.reporting import batch_plan
from convs2s_jax.training.run import prepare
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.inputs import fingerprint
from tests import tiny


class Letters:
    """A vocabulary of characters."""

    size, fingerprint = 300, "letters"

    def encode(self, lines):
        return [[ord(c) % 250 for c in line] for line in lines]


class Alike(Letters):
    """Another one with the same ids."""

    fingerprint = "letters again"


def test_pairs_batches_and_padding_are_those_of_the_epoch():
    rng = np.random.default_rng(0)
    src, tgt = rng.integers(1, 70, 200), rng.integers(1, 70, 200) // 3 + 1
    cfg = tiny.config(data__batch__shapes=4, data__batch__row_multiple=4)
    found = batch_plan.planned(cfg, src, tgt)
    longest = prepare.longest(cfg)
    rows, _ = plan.usable(src, tgt, max_source=longest[0], max_target=longest[1])
    _, shapes = prepare.batch_shapes(cfg, src[rows], tgt[rows])
    epoch = plan.plan_epoch(src, tgt, rows, shapes, seed=cfg.seed, epoch=1)
    assert found.padding == epoch.padding
    assert sum(row.pairs for row in found.rows) == len(rows)
    for i, row in enumerate(found.rows):
        own = [batch for batch in epoch.batches if batch.shape == i]
        full = sum(src[r] + tgt[r] for batch in own for r in batch.rows)
        cells = sum(shapes[i].rows * (shapes[i].src + shapes[i].tgt) for _ in own)
        assert (row.shape, row.batches, row.pairs) == (shapes[i], len(own), sum(len(b.rows) for b in own))
        assert row.padding == pytest.approx(1 - full / cells if cells else 0.0)
    counted = {}
    for s0, s1, t0, t1, pairs in found.lengths:
        counted[s0, t0] = pairs
        assert pairs == sum((s0 <= src[r] < s1) and (t0 <= tgt[r] < t1) for r in rows)
    assert sum(counted.values()) == len(rows)


def test_lengths_come_from_the_cache_and_from_nothing_else(tmp_path):
    texts = [f"{i} kilowatts and more"[: 5 + i] for i in range(40)]
    cfg = tiny.config()
    assert batch_plan.of_run(cfg, tmp_path) is None

    for side in ("src", "tgt"):
        tokens_on_disk.tokenize(texts, Letters(), tmp_path / "cache", f"train.{side}")
    found = batch_plan.of_run(cfg, tmp_path)
    lengths = np.array([len(text) + 1 for text in texts])
    assert found == batch_plan.planned(cfg, lengths, lengths)
    [path] = (tmp_path / "cache").glob("train.tgt*")
    path.write_bytes(path.read_bytes()[:-1])
    assert batch_plan.of_run(cfg, tmp_path) is None


def test_a_cache_of_several_runs_gives_each_run_its_own_text(tmp_path):
    """The checkpoint tells which text is that of the run, whatever was tokenised last, or by two equal vocabularies."""
    runs = {name: [f"{name} {i}"[: 3 + i] for i in range(length)] for name, length in (("first", 9), ("second", 12))}
    cfg = tiny.config(data__cache_dir=str(tmp_path / "cache"))
    for name, texts in runs.items():
        src, tgt = (
            tokens_on_disk.tokenize(texts, Letters(), tmp_path / "cache", f"train.{side}") for side in ("src", "tgt")
        )
        place = tmp_path / name / "checkpoints" / "5" / "position"
        place.mkdir(parents=True)
        record = position_file.make({"data": fingerprint(src, tgt)}, step=5, params={}, optimizer={})
        (place / "metadata").write_text(json.dumps(record))
    for side in ("src", "tgt"):
        tokens_on_disk.tokenize(runs["second"], Alike(), tmp_path / "cache", f"train.{side}")
    for name, texts in runs.items():
        lengths = np.array([len(text) + 1 for text in texts])
        assert batch_plan.of_run(cfg, tmp_path / name) == batch_plan.planned(cfg, lengths, lengths)
    assert batch_plan.of_run(cfg, tmp_path / "not begun") is None
