"""The training text is segmented anew in each epoch, and the run knows how."""

import numpy as np
import pytest

from convs2s_jax.training.run import loop
from convs2s_jax.training.run import prepare as prepare_module
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.prepare import prepare
from tests import tiny

SAMPLED = {"data__subword_sampling": 0.2}


def segmented(run, epoch, **values):
    longest = values.pop("longest", (64, 64))
    data = tiny.config(**{"data__subword_sampling": 0.2, **values}).data
    return prepare_module.segmented(data, run.train, run.vocabularies, run.folder, seed=1, epoch=epoch, longest=longest)


def largest(run):
    return max(shape.src for shape in run.shapes), max(shape.tgt for shape in run.shapes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return prepare(tiny.config(**SAMPLED), tmp_path_factory.mktemp("run"), lambda _: None)


def test_the_text_stays_and_its_tokens_change_with_the_epoch(run):
    first, second = (segmented(run, epoch) for epoch in (1, 2))
    for name in ("src", "tgt"):
        best, texts = getattr(run.train, name), getattr(run.train.text, name)
        vocabulary, found = getattr(run.vocabularies, name), getattr(first, name)
        plain = [vocabulary.decode(best[i]) for i in range(len(texts))]
        assert [vocabulary.decode(found[i]) for i in range(len(texts))] == plain
        assert len(found.tokens) > len(best.tokens)
        assert not np.array_equal(found.tokens[:200], getattr(second, name).tokens[:200])
        assert np.array_equal(found.tokens, getattr(segmented(run, 1), name).tokens)
    assert not np.array_equal(first.src.tokens[:99], first.tgt.tokens[:99])


def test_what_is_too_long_keeps_its_best_segmentation(run):
    most = int(run.train.src.lengths.max()) + 1, int(run.train.tgt.lengths.max()) + 1
    free, bounded = segmented(run, 1), segmented(run, 1, longest=most)
    long = free.tgt.lengths >= most[1]
    assert 0 < long.sum() < len(long)
    assert np.array_equal(bounded.tgt.lengths, np.where(long, run.train.tgt.lengths, free.tgt.lengths))


def test_all_epochs_fit_the_shapes_where_sources_are_cut(tmp_path):
    """The largest shape may be shorter than the cut: it holds the best segmentation and the first epoch's."""
    cfg = tiny.config(**SAMPLED, data__batch__cut_source=True)
    cut = prepare(cfg, tmp_path, lambda _: None)
    assert largest(cut)[0] < cut.train.longest
    lengths = [segmented(cut, epoch, longest=largest(cut)).lengths()[0].max() for epoch in range(1, 12)]
    free = [segmented(cut, epoch).lengths()[0].max() for epoch in range(1, 12)]
    assert max(lengths) <= largest(cut)[0] < max(free)


@pytest.mark.drill
def test_two_halves_equal_the_whole(tmp_path, run, monkeypatch):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    given = []
    original = loop.batch_on
    with monkeypatch.context() as patch:
        patch.setattr(loop, "batch_on", lambda mesh, split, *rest: given.append(split) or original(mesh, split, *rest))
        train(tiny.config(**SAMPLED, training__max_steps=16), whole)
    longest = largest(run)
    for split, epoch in ((given[0], 1), (given[-1], 2)):
        assert np.array_equal(split.tgt.tokens, segmented(run, epoch, longest=longest).tgt.tokens)
    train(tiny.config(**SAMPLED, training__max_steps=13), halves)  # within the second epoch
    epochs = [line["epoch"] for line in tiny.metrics(halves) if line["split"] == "train"]
    assert epochs[-1] == 2
    train(tiny.config(**SAMPLED, training__max_steps=16), halves)
    assert tiny.digests(halves, 16) == tiny.digests(whole, 16)
    first, later = ([m["loss"] for m in tiny.metrics(one) if m["split"] == "train"] for one in (whole, halves))
    assert later[-1] == first[-1]
