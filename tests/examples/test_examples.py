"""Each example against an independent reference."""

import dataclasses
import importlib.util
import itertools
import json
import shlex
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import sacrebleu

from convs2s_jax.core.command_line import split_overrides
from convs2s_jax.core.config import build, override
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import PAD
from convs2s_jax.data import corpora
from convs2s_jax.data.cldr import CldrConfig, generate
from convs2s_jax.nn import weight_norm
from convs2s_jax.training.loss import loss
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.loop import train
from convs2s_jax.translation.translator import load
from tests import tiny

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _as_users_have_it():
    """Optimisers of optax rely on the standard promotion of dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def example(name):
    """The module of an example, which stands outside the package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def close(a, b, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), a, b)


def test_every_example_is_tested_and_says_how_to_run_it():
    text = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    for path in FOLDER.glob("*.py"):
        assert f'"{path.stem}"' in text
        assert f"\n    python examples/{path.name}\n" in path.read_text()


@pytest.mark.drill
def test_per_example_gradients_are_those_of_one_pair_at_a_time_and_add_up_to_the_batch():
    module = example("per_example_gradients")
    params, gradients, norms = module.main()
    of_batch = jax.jit(jax.grad(lambda params: loss(params, module.CFG, module.BATCH).loss))(params)
    close(jax.tree.map(lambda leaf: leaf.sum(0), gradients), of_batch)
    alone = jax.jit(module.gradient)
    for i in range(len(norms)):
        leaves = jax.tree.leaves(alone(params, jax.tree.map(lambda x, i=i: x[i], module.BATCH)))
        close(norms[i], np.sqrt(sum(np.sum(np.square(leaf)) for leaf in leaves)))


@pytest.mark.drill
def test_focal_loss_is_its_formula_and_lion_gets_its_mean_gradient():
    module = example("own_loss_and_optimizer")
    batch = module.pairs(0, rows=3)
    params = module.convs2s.init(jax.random.key(0), module.CFG, source_vocabulary=12, target_vocabulary=12)
    split = module.convs2s.split_kernels(params, module.CFG)
    focal = jax.jit(module.focal_loss)
    plain = loss(params, module.CFG, batch)
    close(focal(params, batch, None, 0.0)[:2], (plain.loss, plain.tokens))

    @jax.jit
    def predicted(params):
        memory = module.convs2s.encode(params, module.CFG, batch.src)
        cache = module.convs2s.init_cache(params, module.CFG, memory, 3)
        return module.convs2s.decode(params, module.CFG, memory, cache, module.convs2s.decoder_inputs(batch.tgt))[0]

    logits = np.asarray(predicted(params))
    total = correct = 0.0
    for at in np.argwhere(batch.tgt != PAD):
        row = logits[tuple(at)]
        p = np.exp(row[batch.tgt[tuple(at)]]) / np.exp(row).sum()
        total -= (1 - p) ** 2 * np.log(p)
        correct += np.argmax(row) == batch.tgt[tuple(at)]
    sums = focal(params, batch, None, 2.0)
    close([sums.loss, sums.correct], [total, correct])

    module.pairs = lambda _: batch
    state, history = module.main(updates=1)
    close(history[0], sums)
    mean = jax.jit(jax.grad(lambda p: focal(weight_norm.merge(p), batch, None).loss / sums.tokens))
    updates, _ = module.OPTIMIZER.update(mean(split), module.OPTIMIZER.init(split), split)
    close(state.params, optax.apply_updates(split, updates))


@pytest.mark.drill
def test_the_convolution_of_ones_own_learns_and_its_losses_are_the_same_on_eight_devices(own_kinds):
    """tests/models/test_own_kinds.py compares its numbers with a loop and with the dense kind."""
    module = example("own_convolution")
    _, alone = module.main(60)
    assert np.mean(alone[-5:]) < 0.5 * np.mean(alone[:5])
    _, apart = module.main(3, module.convs2s.MeshConfig(data=2, fsdp=2, tensor=2, rules=module.RULES))
    close(apart, alone[:3])


@pytest.mark.drill
def test_the_training_loop_learns_and_its_losses_are_the_same_on_eight_devices():
    module = example("training_loop")
    axes = module.convs2s.MeshConfig
    alone = module.main(30, axes(data=1))
    assert alone[-5:].mean() < 0.8 * alone[:5].mean()
    close(module.main(3, axes(data=2, fsdp=2, tensor=2)), alone[:3])


def test_the_toy_search_finds_what_listing_all_sentences_finds():
    module = example("toy_beam_search")
    sentences = [s for n in range(1, 7) for s in itertools.product((4, 5, 6, 7), repeat=n)]

    def log_p(words):
        path = [module.EOS, *words, module.EOS]
        return sum(np.log(module.P[a].get(b, 1e-9)) for a, b in itertools.pairwise(path))

    best = max(sentences, key=log_p)
    greedy, beam = module.main()
    assert beam.tokens[0, 0, : len(best) + 1].tolist() == [*best, module.EOS]
    np.testing.assert_allclose(beam.scores[0, 0], log_p(best), rtol=1e-5)
    assert greedy.scores[0, 0] < beam.scores[0, 0]


@pytest.mark.drill
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("attention_alone", ()), ("inside_flax", (3,)), ("text_classifier", ()), ("search_numbers", ())],
)
def test_an_example_whose_parts_are_tested_elsewhere_runs(name, arguments):
    """Attention in tests/nn/test_attention.py, Flax in tests/interop/test_flax.py, classifiers in tests/models."""
    found = example(name).main(*arguments)
    assert name != "text_classifier" or found[1] > 0.97


@pytest.mark.drill
def test_a_sweep_plans_each_case(tmp_path):
    flags = [f"--config={tiny.config_file(tmp_path)}", "--lengths=8", "--tokens_per_chip=64"]
    found = example("scale_sweep").main(tmp_path / "sweep", ("cpu:1", "cpu:2"), flags)
    assert [sorted(line) for line in found.values()] == [[1, 2], [1, 2]]


@pytest.mark.drill
def test_synthetic_text_is_aligned_and_a_reranked_line_has_the_largest_sum(tmp_path, capsys):
    """Each recipe from its command to its end, against the library: translations, scores, and what its flags read."""
    module, lines = example("synthetic"), {}
    for split, sides in generate("en", "de", CldrConfig(train=300, valid=12, test=8)).items():
        for name, side in zip(("en", "de"), sides, strict=True):
            lines[f"{split}.{name}"] = [*side]
            (tmp_path / f"{split}.{name}").write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    short = {"search__max_length_a": 0.0, "search__max_length_b": 10, "search__beam_size": 3}
    values = tiny.values(**tiny.files(tmp_path, "en", "de"), **short)
    forward, reverse, other = (str(tmp_path / name) for name in ("forward", "reverse", "other"))
    train(build(Config, values), Path(forward))
    train(tiny.config(**tiny.files(tmp_path, "de", "en"), **short), Path(reverse))

    def run(recipe, workdir, output, *more):
        output = tmp_path / output
        module.main([recipe, f"--workdir={workdir}", f"--output={output}", *more])
        return output, capsys.readouterr().out.strip()

    def written(path):
        return path.read_text(encoding="utf-8").splitlines()

    def with_flags(printed):
        cfg = values
        for path, text in split_overrides(shlex.split(printed))[1]:
            cfg = override(cfg, path, text)
        return build(Config, cfg)

    def texts(workdir, lines, **options):
        model = load(workdir, tell=print)
        search = dataclasses.replace(model.cfg.search, **options.pop("search", {}))
        return [
            [(one.text, one.score) for one in each.hypotheses]
            for each in model.translate(lines, search=search, **options)
        ]

    mono = lines["test.de"]
    output, printed = run("back-translate", reverse, "bt", f"--input={tmp_path}/test.de", "--seed=1")
    assert written(output.with_suffix(".de")) == mono
    sampled = texts(reverse, mono, search={"sampling": True, "beam_size": 1}, key=jax.random.key(1))
    assert written(output.with_suffix(".en")) == [text for [(text, _)] in sampled]
    data = with_flags(printed).data
    text = corpora.read(data, "train")
    assert [*text.src] == lines["train.en"] + [f"<bt> {text}" for [(text, _)] in sampled]
    assert [*text.tgt] == lines["train.de"] + mono
    assert [*corpora.read(data, "valid").tgt] == lines["valid.de"]

    output, printed = run("distil", forward, "distilled", "--", "--beam_size=2")
    text = corpora.read(with_flags(printed).data, "train")
    assert [*text.src] == written(output.with_suffix(".en")) == lines["train.en"]
    best = [each[0][0] for each in texts(forward, lines["train.en"], search={"beam_size": 2})]
    assert [*text.tgt] == written(output.with_suffix(".de")) == best
    with pytest.raises(UserError, match=r"train\.en is the input or of the run's corpus"):
        run("distil", forward, "train")

    _, printed = run("reverse", forward, "backwards")
    cfg = with_flags(printed)
    for split in corpora.SPLITS:
        text = corpora.read(cfg.data, split)
        assert [*text.src] == lines[f"{split}.en"]
        assert [line.split() for line in text.tgt] == [[*reversed(line.split())] for line in lines[f"{split}.de"]]
    train(cfg, Path(other))

    given = [f"--right_to_left={other}", f"--input={tmp_path}/test.en", f"--reference={tmp_path}/test.de"]
    output, printed = run("rerank", forward, "best.de", *given, "--nbest=3", "--weight=2", "--nonormalize")
    listed = texts(forward, lines["test.en"], search={"beam_size": 3, "normalize": False}, nbest=3)
    second, chosen = load(other, tell=print), written(output)
    search = dataclasses.replace(second.cfg.search, normalize=False)
    every = [" ".join(reversed(text.split())) for hypotheses in listed for text, _ in hypotheses]
    assert written(tmp_path / "best.de.nbest.de") == every
    read = iter(map(json.loads, written(tmp_path / "best.de.scores.jsonl")))
    assert len(chosen) == len(listed)
    for source, hypotheses, line in zip(lines["test.en"], listed, chosen, strict=True):
        backwards = [every.pop(0) for _ in hypotheses]
        scores = [one.best.score for one in second.score([source] * len(backwards), backwards, search=search)]
        np.testing.assert_allclose([next(read)["hypotheses"][0]["score"] for _ in scores], scores, rtol=1e-5)
        sums = [score + 2 * more for (_, score), more in zip(hypotheses, scores, strict=True)]
        at = [text for text, _ in hypotheses].index(line)
        np.testing.assert_allclose(sums[at], max(sums), rtol=1e-5)
    assert chosen != [each[0][0] for each in listed]
    assert f"{sacrebleu.corpus_bleu(chosen, [mono], force=True).score:.2f}" in printed
