"""The model behind a server: the shapes it has compiled are all that it needs, and its translations are decoding's."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.errors import UserError
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.serving.engine import Engine, Key, LineRequest, load
from convs2s_jax.serving.options import ServeOptions
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.translation import shortlists, translator
from convs2s_jax.translation.lines import TextRequest, translate
from tests.processes import called
from tests.serving.reversing import talk
from tests.workdirs import unpacked


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return unpacked("convs2s", tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def engine(workdir):
    options = {"beam_sizes": (2,), "batch_size": 3, "max_tokens": 16, "allow": ("constraints",)}
    return load(ServeOptions(workdir=(str(workdir),), **options), tell=pytest.fail)


def test_nothing_is_compiled_once_the_server_is_ready(engine):
    compiled = list(engine.compile())
    # 1 and 3 lines, with and without attention; searches with and without constraints
    assert len(compiled) == len(engine.widths) * 2 * 2 * 2
    lines = [LineRequest(text) for text in ("5 kilowatts", "at 12:30", "")]
    axes = engine.room_for(TextRequest(engine.search, ["5"], constraints=[["5"]]))
    with CompileCounter() as counter:
        for attention in (False, True):
            key = Key(engine.search_for({"length_penalty": 0.7}), attention=attention)
            for count in (1, 2, 3):
                for width in engine.widths:
                    engine.run(key, width, lines[:count])
                    engine.run(key._replace(axes=axes), width, [lines[0]._replace(constraints=("5",))] * count)
    assert counter.count == 0


def test_widths_hold_every_line_that_is_taken(engine):
    engine = dataclasses.replace(engine, max_tokens=24)
    assert engine.widths == (16, 24)
    lines = ["1" * length for length in range(24)]
    tokens = [len(ids) for ids in engine.translator.vocabularies.src.encode(lines)]
    assert {15, 16} <= {*tokens}  # the longest line of the first width, and the shortest of the second
    fitting = [line for line, count in zip(lines, tokens, strict=True) if count < 24]
    assert engine.widths_of(fitting) == [16 if count < 16 else 24 for count in tokens if count < 24]
    with pytest.raises(UserError, match=r"line 2 has .* tokens, but this server accepts at most 23; split it"):
        engine.widths_of(["5", "1 2 3 4 5 6 7 8 9 " * 3])


@pytest.fixture(scope="module")
def list_file(workdir, tmp_path_factory):
    """A shortlist of a few words for each source word."""
    vocabularies = translator.load(workdir, tell=pytest.fail).vocabularies
    S, V = vocabularies.src.size, vocabularies.tgt.size
    words = np.sort(np.random.default_rng(0).integers(4, V, (S, 4)), axis=1).reshape(-1).astype(np.int32)
    made = Shortlist(np.asarray([5], np.int32), words, np.arange(S + 1, dtype=np.int32) * 4, V)
    path = tmp_path_factory.mktemp("lists") / "shortlist"
    shortlists.save(made, vocabularies, path)
    return str(path)


@pytest.fixture(scope="module")
def required(workdir, list_file):
    allow = ("prefixes", "constraints")
    options = ServeOptions(workdir=(str(workdir),), batch_size=8, max_tokens=16, allow=allow, shortlist=list_file)
    return load(options, tell=pytest.fail)


def test_answers_are_those_of_the_decode_command(workdir, required, list_file, tmp_path, monkeypatch):
    prefix, constraints = ["", "um 12", ""], [["Kilo"], [], []]
    monkeypatch.setattr(Engine, "shapes", lambda _: iter(()))  # the server is ready at once
    lines = ["5 kilowatts", "at 12:30", "1 2 3"]
    asked = {"lines": lines, "prefix": prefix, "constraints": constraints, "shortlist": True, "nbest": 2}
    answer = talk(lambda client: client.post("/translate", json=asked | {"alignment": True}), engine=required)
    flags = ["--format=json", "--nbest=2", f"--shortlist={list_file}"]
    for name, given in {"prefix": prefix, "constraints": map("\t".join, constraints)}.items():
        (tmp_path / name).write_text("".join(f"{text}\n" for text in given))
        flags.append(f"--{name}={tmp_path / name}")
    decoded = called(COMMANDS["decode"].run, "decode.py", f"--workdir={workdir}", *flags, text="\n".join(lines))
    expected = [json.loads(line) for line in decoded.stdout.splitlines()]
    for found, wanted in zip(answer.json()["translations"], expected, strict=True):
        for one, other in zip(found["hypotheses"], wanted["hypotheses"], strict=True):
            assert [one[name] for name in ("text", "tokens", "alignment")] == [
                other[name] for name in ("text", "tokens", "alignment")
            ]
            np.testing.assert_allclose(one["score"], other["score"], rtol=1e-5)
            np.testing.assert_allclose(one["token_scores"], other["token_scores"], rtol=1e-4, atol=1e-5)
    texts = [each["hypotheses"][0]["text"] for each in expected]
    assert texts[1].startswith("um 12")
    assert "Kilo" in texts[0]


@pytest.mark.parametrize(
    ("prefix", "constraints", "sentence"),
    [
        (["a"], None, "prefix has 1 entries for 2 lines"),
        (["", "a " * 33], None, "tokens in a prefix are too many; this server accepts at most 32|at most"),
        (None, [[], ["a"] * 9], "line 2: 9 constraints are too many; this server accepts at most 8"),
        (
            None,
            [["5", "1 2 3 4 5 6 7 8 9"], []],
            "line 1: .* tokens in a constraint are too many; this server .* at most 8",
        ),
        (["\u4e00", ""], None, "prefix, line 1: '\u4e00' is not in the target vocabulary"),
    ],
)
def test_what_cannot_be_required_is_refused(required, prefix, constraints, sentence):
    with pytest.raises(UserError, match=sentence):
        required.room_for(
            TextRequest(required.search, ["5 kilowatts", "at 12:30"], prefix=prefix, constraints=constraints)
        )


@pytest.fixture(scope="module")
def drawing(workdir):
    options = ServeOptions(
        workdir=(str(workdir),), beam_sizes=(2,), batch_size=8, max_tokens=16, allow=("sampling", "prefixes")
    )
    return load(options, tell=pytest.fail)


@pytest.mark.drill
def test_samples_are_those_of_decoding_whatever_shares_the_batch(drawing):
    """Samples of a request depend on its seed and on the number of the line in it; they compile nothing."""
    compiled = list(drawing.compile())
    assert len(compiled) == len(list(drawing.shapes()))
    lines, search = ["5 kilowatts", "at 12:30"], drawing.search_for({"sampling": True, "temperature": 1.5})
    assert search.sampling
    expected = {
        seed: translate(drawing.translator, TextRequest(search, lines, nbest=2, key=jax.random.key(seed)))
        for seed in (0, 7)
    }
    assert expected[0] != expected[7]
    mixed = [LineRequest(lines[1], 2, draw=(7, 1)), LineRequest(lines[0], 2, draw=(0, 0))]
    for requests, wanted in (
        (mixed, [expected[7][1], expected[0][0]]),
        ([LineRequest(lines[0], 2, draw=(7, 0))], [expected[7][0]]),
        (mixed * 2, [expected[7][1], expected[0][0]] * 2),
    ):
        with CompileCounter() as counter:
            found = drawing.run(Key(search), 16, requests)
        assert counter.count == 0
        assert [[each.text for each in one.hypotheses] for one in found] == [
            [each.text for each in one.hypotheses] for one in wanted
        ]


def test_samples_are_compiled_beforehand_and_drawn_freely(drawing):
    kinds = {(key.search.sampling, key.axes.prefix > 0) for key, _, _ in drawing.shapes()}
    assert kinds == {(False, False), (False, True), (True, False)}
    search = drawing.search_for({"sampling": True})
    with pytest.raises(UserError, match="sampling cannot be combined with prefix or constraints"):
        drawing.room_for(TextRequest(search, ["5"], prefix=["a"]))
    with pytest.raises(UserError, match="it must be started with --allow=sampling"):
        dataclasses.replace(drawing, allow=()).search_for({"sampling": True})


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"beam_sizes": (0,)}, "each must be 1 or more"),
        ({"port": 70000}, "--port=70000 is invalid; use 1 to 65535"),
        ({"max_lines": 2000}, "raise --max_waiting"),
        ({"timeout": 0.0}, "use 0.1 to 3600 seconds"),
        ({"drain": 0}, "--drain is 0; use 1 to 3600 seconds"),
    ],
)
def test_options_that_no_server_can_have_are_refused(workdir, more, sentence):
    with pytest.raises(UserError, match=sentence):
        ServeOptions(workdir=(str(workdir),), **more)


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        # of an ensemble the last model would count as one
        ({"lm_weight": 0.2}, r"^--lm_weight is 0\.2, but a server has no language model; use 0"),
        ({"sampling": True}, "^--sampling: a server uses beam search; use --nosampling"),
        ({"length_penalty": 0.5, "normalize": False}, "^--length_penalty with --nonormalize has no effect"),
        ({"temperature": 0.0}, r"^--temperature is 0\.0: "),
    ],
    ids=str,
)
def test_a_search_that_no_server_can_have_is_refused(workdir, search, sentence):
    options = ServeOptions(workdir=(str(workdir), str(workdir)), search=search)
    with pytest.raises(UserError, match=sentence):
        load(options, tell=lambda _: None)


def test_a_request_cannot_turn_off_the_coverage_penalty_of_a_server(engine):
    """A search with one is another program."""
    covering = dataclasses.replace(engine, search=dataclasses.replace(engine.search, coverage_penalty=0.2))
    assert covering.search_for({"coverage_penalty": 0.3}).coverage_penalty == 0.3
    with pytest.raises(UserError, match=r"^coverage_penalty is 0, but this server was started with one; use a value"):
        covering.search_for({"coverage_penalty": 0})
    with pytest.raises(UserError, match=r"^coverage_penalty is not enabled on this server; it must be started with --"):
        engine.search_for({"coverage_penalty": 0.3})
