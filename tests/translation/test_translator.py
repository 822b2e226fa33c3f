"""Ensembles and averages, and members that do not fit together."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.symbols import word_list
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.trees import path_of
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import restoring
from convs2s_jax.translation import lines as library
from convs2s_jax.translation import translator as module
from convs2s_jax.translation.lines import TextRequest
from convs2s_jax.translation.translator import load, precomputed
from tests import stores, tiny
from tests.checkpoints import without_updates
from tests.workdirs import normalizing

bucket = stores.bucket

TARGETS = ["5 Kilowatt", "", "Norwegen und Spanien"]


@pytest.fixture
def sources(lines):
    return lines[:3]


def token_scores(translator, sources):
    found = library.translate(translator, TextRequest(translator.cfg.search, sources, targets=TARGETS))
    return [np.array(result.best.token_scores) for result in found]


def test_the_best_checkpoint_is_loaded_unless_a_step_is_named(trained):
    losses = {line["step"]: line["loss"] for line in tiny.metrics(trained) if line["split"] == "valid"}
    assert load(trained, tell=print).steps == ((min(losses, key=losses.get),),)
    assert load(trained, steps=[2], tell=print).steps == ((2,),)


@pytest.mark.parametrize("data", [7, None], ids=["begun here", "imported"])
def test_random_parameters_are_refused_and_imported_ones_are_not(trained, tmp_path, data):
    """A checkpoint of step 0: earlier versions wrote one where a signal came before the first update."""
    workdir = without_updates(trained, tmp_path / "run", data=data)
    if data is None:
        assert load(workdir, tell=print).steps == ((0,),)
    else:
        with pytest.raises(
            UserError, match=f"^workdirs={workdir} contains random parameters: its checkpoint of step 0"
        ):
            load(workdir, tell=print)


def test_a_model_of_normalised_text_normalises_what_it_is_given(trained, tmp_path):
    """All members of an ensemble do so in the same way."""
    workdir = shutil.copytree(trained, tmp_path / "run")
    normalizing(workdir, "nfkc")
    model, plain = load(workdir, tell=print), load(trained, tell=print)
    given, normal = (model.translate([line]) + plain.translate([line]) for line in ("５ kilowatts", "5 kilowatts"))
    assert [one.best.text for one in (given[0], normal[1])] == [normal[0].best.text] * 2
    assert given[1].source_tokens != given[0].source_tokens == normal[0].source_tokens
    with pytest.raises(UserError, match=r"data.normalize is \(\) in .* and \('nfkc',\) in .*; it must be the same"):
        load([trained, workdir], tell=print)


def test_dtype_is_that_of_the_run_unless_another_is_named(trained, sources):
    full, half = load(trained, tell=print), load(trained, dtype="bfloat16", tell=print)
    assert (full.models.dtype, half.models.dtype, half.cfg.model.dtype) == ("float32", "bfloat16", "bfloat16")
    for a, b in zip(*(token_scores(translator, sources) for translator in (full, half)), strict=True):
        assert not np.array_equal(a, b)
        np.testing.assert_allclose(a, b, atol=0.1)


def test_methods_hand_each_argument_on(translator, monkeypatch):
    monkeypatch.setattr(module, "translate", lambda _, request: request)
    texts = {"prefix": ["5"], "constraints": [["5"]]}
    options = {"nbest": 2, "replace_unk": True, "unk_dictionary": {"a": "b"}, "attention": False}
    options |= {name: object() for name in ("key", "strategy", "batching")}
    asked = translator.translate(["5"], **texts, **options)
    assert asked == TextRequest(translator.cfg.search, ["5"], **texts, **options)
    given = {"batching": object(), "search": object()}
    assert translator.score(["5"], ["6"], **given) == TextRequest(lines=["5"], targets=["6"], **given)


def test_an_ensemble_of_none_is_refused():
    with pytest.raises(UserError, match=r"^workdirs is empty; pass a workdir, or several for an ensemble$"):
        load([])


def test_a_ready_translator_translates_and_scores_the_same(trained, other, sources):
    for workdirs in (trained, [trained, other]):
        plain = load(workdirs, tell=print)
        fast = precomputed(plain)
        assert jax.tree.structure(fast.params) != jax.tree.structure(plain.params)
        for a, b in zip(*(token_scores(translator, sources) for translator in (plain, fast)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        a, b = (library.translate(translator, TextRequest(plain.cfg.search, sources)) for translator in (plain, fast))
        for one, two in zip(a, b, strict=True):
            assert one.best.text == two.best.text
            np.testing.assert_allclose(one.best.score, two.best.score, rtol=1e-5, atol=1e-5)


@pytest.mark.drill
def test_integers_score_nearly_the_same(trained, other, sources):
    """Of all kernels that are named, and of no others."""
    for workdirs in (trained, [trained, other]):
        plain = load(workdirs, tell=print)
        small = precomputed(plain, int8=True)
        a, b = (np.concatenate(token_scores(translator, sources)) for translator in (plain, small))
        assert not np.array_equal(a, b)
        np.testing.assert_allclose(a, b, atol=0.05)
        found = {
            path_of(path): leaf.dtype
            for path, leaf in jax.tree_util.tree_leaves_with_path(small.params)
            if leaf.ndim > 1 and not path_of(path).endswith(("scale", "/b"))
        }
        whole = {name for name, dtype in found.items() if dtype != jnp.int8}
        assert all("embedding" in name or "attention" in name or "tables" in name or "map_" in name for name in whole)
        assert sum(name.endswith("conv/w/values") or name.endswith("output/w/values") for name in found) >= 3


def test_an_average_has_the_mean_of_the_merged_kernels(trained):
    """By hand: w = g v / |v| of each step's checkpoint, then the mean."""
    steps = {}
    real = restoring.restore_items

    def spy(*arguments, **named):
        items, position = real(*arguments, **named)
        steps[position["step"]] = items["params"]
        return items, position

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoring, "restore_items", spy)
        averaged = load(trained, steps=[1, 3], tell=print)
    assert averaged.steps == ((1, 3),)

    def kernel(leaf):
        if not isinstance(leaf, weight_norm.Normed):
            return np.asarray(leaf, np.float64)
        v, g = np.asarray(leaf.v, np.float64), np.asarray(leaf.g, np.float64)
        return g * v / np.sqrt((v**2).sum(axis=tuple(range(v.ndim - 1)), keepdims=True))

    kernels = [
        jax.tree.leaves(jax.tree.map(kernel, steps[s], is_leaf=lambda x: isinstance(x, weight_norm.Normed)))
        for s in (1, 3)
    ]
    for leaf, a, b in zip(jax.tree.leaves(averaged.params), *kernels, strict=True):
        np.testing.assert_allclose(leaf, (a + b) / 2, rtol=1e-5, atol=1e-7)


def test_a_workdir_in_a_store_is_loaded_and_named_by_its_address(trained, bucket):
    copy = shutil.copytree(trained, bucket / "runs" / "a")
    here = load([trained, trained], tell=pytest.fail)
    there = load(["gs://bucket/runs/a", trained], tell=pytest.fail)
    assert here.fingerprints == there.fingerprints
    jax.tree.map(np.testing.assert_array_equal, here.params, there.params)
    (copy / "checkpoints" / "3" / "params" / "_METADATA").write_text("{")
    with pytest.warns(UserWarning, match="^the checkpoint of step 3 is damaged"):
        assert load("gs://bucket/runs/a").steps[0][0] in (1, 2)
    with pytest.raises(UserError, match=r"^gs://bucket/runs/a/checkpoints has no checkpoint of step 9; it has 1, 2"):
        load("gs://bucket/runs/a", steps=[9])
    with pytest.raises(UserError, match=r"^lm=gs://bucket/runs/b: there is no such folder"):
        load("gs://bucket/runs/b", given_as="lm")


def test_the_last_checkpoints_of_each_workdir_are_named_by_their_number(trained, other):
    there = [list(run_folder.finished(run_folder.checkpoints(workdir))) for workdir in (trained, other)]
    assert [len(steps) > 1 for steps in there] == [True, False]
    assert load(trained, steps=["last:2"], tell=print).steps == (tuple(there[0][-2:]),)
    assert load([trained, other], steps=["last:1"], tell=print).steps == ((there[0][-1],), (there[1][-1],))
    for asked, rule in (
        (
            ["last:2"],
            r"^--checkpoint contains 'last:2', but .*/checkpoints has only 1; training.keep sets how many are",
        ),
        (
            ["last:0"],
            r"^--checkpoint contains 'last:0': expected a step, or last:N for the last N \(1 or more\)$",
        ),
        (["best"], r"^--checkpoint contains 'best': expected a step"),
        (["last:1", there[1][-1]], r"contains step \d+ twice"),
    ):
        with pytest.raises(UserError, match=rule):
            load(other, steps=asked, tell=print)


def test_the_room_of_an_ensemble_is_that_of_its_smallest_member(trained, other):
    both = load([trained, other], tell=print)
    small = dataclasses.replace(both.models[1], decoder=dataclasses.replace(both.models[1].decoder, max_positions=20))
    both = dataclasses.replace(both, models=(both.models[0], small))
    assert (both.max_source, both.max_target) == (62, 18)


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_an_ensemble_of_different_vocabularies_is_refused(trained, monkeypatch, side):
    first = load(trained, tell=print)
    changed = dataclasses.replace(first.vocabularies, **{side: word_list(("other",))})
    members = iter([first, dataclasses.replace(first, vocabularies=changed)])
    monkeypatch.setattr(module, "_load", lambda *_: next(members))
    with pytest.raises(UserError, match=rf"^workdirs: .*/run and b have different vocabularies \({side}\); train all"):
        load([trained, "b"], tell=print)
