"""The plan of an update: its numbers against those of the arrays and of the compiled programs."""

import dataclasses
import importlib.util
import json

import jax
import pytest

from convs2s_jax.commands.scale import Batches
from convs2s_jax.core.config import build, override
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.shapes import Shape
from convs2s_jax.scaling import plan, programs, tables, topology
from convs2s_jax.scaling.chips import CHIPS
from convs2s_jax.training import flops
from convs2s_jax.training import mesh as meshes
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs import program_key, state_program, vocabulary_sizes
from tests import tiny

CFG = tiny.config(mesh={"data": 2, "fsdp": 4}, data__batch={"tokens": 256, "accumulate": 3})
SIZES = {"source": 150, "target": 150}


def of_kind(kind):
    """The configuration of a language model or a classifier."""
    if kind == "language":
        values = tiny.values(model__encoder={"kind": "none"}, model__decoder__attention_layers=[], data__src="")
        values["data"]["tgt"] = "de"
    else:
        values = tiny.values(data__corpus="cldr_kinds", data__tgt="")
        values["model"] = {"kind": "classifier", "embedding_dim": 8}
    return values


def gpus(count):
    """Devices of this process with the rates of GPUs."""
    return topology.Topology(name=f"h100:{count}", chip=CHIPS["h100"], devices=tuple(jax.devices()[:count]))


@pytest.fixture(scope="module")
def made():
    return plan.make(CFG, gpus(8), lengths=[16])


def test_a_plan_has_the_programs_of_an_update(made):
    assert [(each.name, each.times) for each in made.programs] == [
        ("first state", 0),
        ("gradients", 1),
        ("more gradients", 2),
        ("update", 1),
    ]
    assert made.mesh == {"data": 2, "fsdp": 4, "tensor": 1}
    assert made.shapes == ((16, 16, 16),)
    assert made.tokens == (3 * 16 * 16,)


def test_state_and_arguments_have_the_bytes_of_the_arrays(made):
    mesh = meshes.make(CFG.mesh)
    state = state_program(program_key(CFG), mesh, **SIZES)(jax.random.key(0))
    parts = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state)]
    assert made.state_bytes == sum(parts)
    assert made.parameters == sum(leaf.size for leaf in jax.tree.leaves(state.params))
    first, gradients, more, update = made.programs
    params = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state.params))
    assert gradients.memory.arguments == params + 2 * 2 * 16 * 4 + 8  # the batch and the key
    beside = sum(parts) - params  # the state of the optimiser stays in memory
    peaks = (gradients.memory.peak + beside, more.memory.peak + beside, update.memory.peak, first.memory.peak)
    assert made.resident == max(peaks)


def test_a_plan_is_json_and_a_table(made):
    found = {(each.kind, each.axis) for each in made.programs[1].collectives}
    assert found >= {("all-gather", "fsdp"), ("all-reduce", "data+fsdp")}
    assert not any("tensor" in axis for _, axis in found)
    values = json.loads(json.dumps(plan.as_json(made)))
    assert values["programs"][0]["memory"]["arguments"] == made.programs[0].memory.arguments
    assert values["steps"][0]["seconds"] == made.steps[0].seconds
    assert (values["devices"], values["fits"]) == (8, True)
    text = tables.of_plan(made)
    for part in (
        "8 x h100 (h100:8, 1 slice), mesh data 2, fsdp 4, tensor 1, jit, products in float32",
        "\nfirst state ",
        "all-gather over fsdp",
    ):
        assert part in text


def test_rows_that_pad_a_batch_are_no_tokens(made, monkeypatch):
    """5 rows of 16 tokens fit the budget; training pads them to 8, a multiple of the 8 row shards."""
    monkeypatch.setattr(programs, "compile_all", lambda *_: made.programs)
    found = plan.make(CFG, gpus(8), lengths=[16], tokens=5 * 16)
    assert (found.shapes, found.rows, found.tokens) == (((16, 16, 8),), (5,), (3 * 5 * 16,))
    assert found.steps[0].tokens_per_second == 3 * 5 * 16 / found.steps[0].seconds
    assert "batches: 8 x (16, 16) with 3 rows of padding\n" in tables.of_plan(found)


def test_a_compiler_that_refuses_is_a_plan_that_does_not_fit(monkeypatch):
    def refuse(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: x\nUsed 103.78G of 15.75G hbm. Exceeded by 88.03G.")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    told = []
    found = plan.make(CFG, gpus(8), lengths=[16], tell=told.append)
    assert told == ["planning h100:8: for a large model or hundreds of devices, compiling takes minutes ..."]
    assert found.fits is False
    assert "DOES NOT FIT: gradients (16, 16): Used 103.78G of 15.75G hbm" in tables.of_plan(found)


def test_slices_without_a_known_network_are_refused_before_anything_is_compiled(monkeypatch):
    unknown = dataclasses.replace(gpus(8), chip=dataclasses.replace(CHIPS["v4"], together=4))
    monkeypatch.setattr(programs, "compile_all", lambda *_: pytest.fail("it was compiled"))
    with pytest.raises(UserError, match="2 slices, but the table of chips has no rate of the network of v4: use one"):
        plan.make(CFG, unknown, lengths=[16])


def test_pmap_is_refused():
    cfg = tiny.config(mesh={"data": 8}, parallel="pmap")
    with pytest.raises(UserError, match="parallel is 'pmap', whose programs are compiled when they are called"):
        plan.make(cfg, gpus(8), lengths=[16])


@pytest.mark.parametrize("lengths", [(63, 8), (8, 63), (0, 8), 63])
def test_sources_and_targets_may_have_lengths_of_their_own_that_the_model_has(lengths):
    assert programs.shape_of(CFG, (62, 8), 256) == Shape(62, 8, 4)
    message = r"^lengths \d+x\d+ are out of range: .* sources of 1 to 62 and targets of 1 to 62"
    with pytest.raises(UserError, match=message):
        programs.shape_of(CFG, lengths, 256)


@pytest.mark.parametrize("kind", ["language", "classifier"])
def test_where_one_side_is_text_only_its_length_is_given(kind):
    cfg = build(Config, of_kind(kind))
    with pytest.raises(UserError, match=r"^lengths 24x32: this configuration has text on one side only; use a s"):
        programs.shape_of(cfg, (24, 32), 256)


@pytest.mark.parametrize(
    ("lengths", "tokens", "each", "vocabulary", "message"),
    [
        (("8x",), None, None, None, "--lengths contains '8x': use a number of tokens, or SOURCExTARGET as in 24x32"),
        ((), None, None, None, "--lengths is empty"),
        (("8",), 9, 9, None, "--tokens with --tokens_per_chip"),
        (("8",), 1, None, None, "--tokens=1: use 2 or more"),
        (("8",), None, 0, None, "--tokens_per_chip=0: use 2 or more"),
        (("8",), None, None, 4, "--vocabulary=4: use 5 or more"),
    ],
)
def test_flags_that_fit_nothing_are_refused(lengths, tokens, each, vocabulary, message):
    with pytest.raises(UserError, match=message):
        Batches(lengths=lengths, tokens=tokens, tokens_per_chip=each, vocabulary=vocabulary)


@pytest.mark.drill
@pytest.mark.parametrize("kind", ["language", "classifier"])
def test_other_tasks_have_plans(kind):
    labels = 36 if kind == "classifier" else None
    found = plan.make(build(Config, of_kind(kind)), gpus(1), lengths=[16], vocabulary=40, labels=labels)
    assert found.programs[1].flops.model > 0
    assert found.steps[0].seconds > 0
    assert isinstance(found.programs[1].flops, flops.Flops)
    texts = kind == "classifier"  # counts its texts, as training does
    assert found.tokens == (found.shapes[0].rows * (1 if texts else found.shapes[0].tgt),)
    assert (f"{'texts' if texts else 'target tokens'}/s" in tables.of_plan(found)) is True


def test_vocabularies_have_the_sizes_that_a_run_of_the_configuration_has():
    size = {"src_size": 99, "tgt_size": 70}
    asked = {"data__vocabulary": size}
    assert vocabulary_sizes(tiny.config(**asked)) == {"source": 99, "target": 70}
    joint = {"data__vocabulary": {**size, "joint": True}}
    assert vocabulary_sizes(tiny.config(**joint)) == {"source": 99, "target": 99}
    shared = {"data__vocabulary": {**size, "dir": "elsewhere"}, "model__share_embeddings": True}
    shared["model__decoder__tied_output"] = True
    assert vocabulary_sizes(tiny.config(**shared)) == {"source": 99, "target": 99}
    language, classifier = (
        override(of_kind(kind), "data.vocabulary", repr(size)) for kind in ("language", "classifier")
    )
    assert vocabulary_sizes(build(Config, override(language, "data.vocabulary.joint", "True"))) == {
        "source": 70,
        "target": 70,
    }
    assert vocabulary_sizes(build(Config, classifier)) == {"source": 99, "target": 4 + 2}
    assert vocabulary_sizes(build(Config, classifier), 50, 18) == {"source": 50, "target": 4 + 18}
    with pytest.raises(UserError, match="--labels is missing: the number of a classifier's labels is known only from"):
        plan.make(build(Config, classifier), gpus(1), lengths=[16])
    with pytest.raises(UserError, match="--labels=3: the model is not a classifier; remove it"):
        plan.make(tiny.config(), gpus(1), lengths=[16], labels=3)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_tpus_are_planned_by_their_own_compiler():
    """Its peak holds what the program gives, and its exchanges go over the axes of the mesh."""
    cfg = tiny.config(mesh={"data": 2, "fsdp": 4}, data__batch={"tokens": 256})
    found = plan.make(cfg, topology.named("v5e:2x2", slices=2), lengths=[16])
    assert (found.fits, found.devices) == (True, 8)
    assert all(each.memory.peak >= each.memory.outputs - each.memory.aliased for each in found.programs)
    axes = {each.axis for program in found.programs for each in program.collectives}
    assert axes >= {"fsdp", "data between slices"}
    assert not any("tensor" in axis for axis in axes)
    assert found.steps[0].links > 0


@pytest.mark.skipif(importlib.util.find_spec(topology.GPU_COMPILER) is None, reason="no compiler for GPUs")
def test_gpus_are_planned_by_their_compiler():
    found = plan.make(tiny.config(mesh={"data": 2}), topology.named("h100:2"), lengths=[16])
    _, gradients, update = found.programs
    assert 0 < gradients.product_traffic < gradients.memory_traffic
    assert all(each.asynchronous for each in gradients.collectives)
    assert update.product_traffic == 0
