"""Programs compiled before they are needed: in order, once, and the very programs that updates call."""

import contextlib
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from convs2s_jax.data.shapes import Shape
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run import background_compiler, opening, validation
from convs2s_jax.training.run.background_compiler import BackgroundCompiler, ProgramsAhead
from convs2s_jax.training.run.compilations import CompileCounter, forget
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.processes.interrupts import InterruptedWorkError
from convs2s_jax.training.run.tasks import translation_task
from tests import tiny
from tests.helpers import drills_but


class Work:
    """Work that lasts until it is let go."""

    def __init__(self):
        self.begun, self.done, self.go = [], [], {name: threading.Event() for name in "abcd"}
        self.reached = {name: threading.Event() for name in "abcd"}

    def __call__(self, name):
        self.begun.append(name)
        self.reached[name].set()
        assert self.go[name].wait(60)
        if name == "b":
            raise ValueError("the caller meets it again")
        self.done.append(name)


def test_names_are_done_in_order_once_and_those_needed_before_their_turn_are_left_to_the_caller():
    work = Work()
    with BackgroundCompiler(work, threads=1) as one:
        one.request("abcd")
        assert work.reached["a"].wait(60)
        one.wait_for("c")  # has not begun
        waiting = threading.Thread(target=one.wait_for, args=("a",))
        waiting.start()
        assert waiting.is_alive()
        work.go["a"].set()
        waiting.join(60)
        assert work.reached["b"].wait(60)
        one.request("abcd")
        for name in "bd":
            work.go[name].set()
        assert work.reached["d"].wait(60)
    assert work.begun == ["a", "b", "d"]


def test_names_needed_now_are_done_before_others_and_awaited():
    work, checks = Work(), []

    def release():
        work.go["a"].set()
        if work.reached["c"].is_set():
            work.go["c"].set()

    def interrupted():
        checks.append(work.reached["b"].is_set())
        if len(checks) == 2:
            raise InterruptedWorkError

    with BackgroundCompiler(work, threads=1) as one:
        one.request("abcd")
        assert work.reached["a"].wait(60)
        one.finish("cx", release)  # nobody requested x
        assert work.done == ["a", "c"]
        assert work.reached["b"].wait(60)
        with pytest.raises(InterruptedWorkError):
            one.finish("b", interrupted)
        checks.clear()
        with pytest.raises(InterruptedWorkError):
            one.wait_for("b", interrupted)
        assert checks == [True, True]
        work.go["b"].set()
        work.go["d"].set()


@pytest.mark.parametrize("kind", [KeyboardInterrupt])
def test_a_second_signal_waits_for_nothing_that_is_at_work(kind):
    go = threading.Event()
    with contextlib.suppress(kind), BackgroundCompiler(lambda _name: go.wait(60), threads=1) as one:
        one.request("a")
        raise kind
    assert list(one._running) == ["a"]
    go.set()


def test_without_threads_nothing_is_done():
    with BackgroundCompiler(pytest.fail, threads=0) as one:
        one.request("ab")
        one.wait_for("a")
        one.finish("b", lambda: None)


def test_predictions_that_cannot_be_planned_are_left_to_the_validation():
    training = SimpleNamespace(validate_bleu=True, compile_ahead=1)
    cfg = SimpleNamespace(model=SimpleNamespace(kind="unknown"), training=training)
    assert ProgramsAhead(SimpleNamespace(cfg=cfg), None, None, None, {}).predictions(object()) == []


@contextlib.contextmanager
def two_gradients(lower):
    """Two threads that compile the gradients of two shapes."""
    data = SimpleNamespace(batch=SimpleNamespace(accumulate=1))
    cfg = SimpleNamespace(training=SimpleNamespace(compile_ahead=2), data=data)
    step, mesh = SimpleNamespace(first=SimpleNamespace(lower=lower), add=None), make(MeshConfig(data=1))
    with ProgramsAhead(SimpleNamespace(cfg=cfg, valid=None), mesh, step, None, {}) as both:
        both.updates([Shape(n, n, 4) for n in (3, 5)])
        yield both


def test_shapes_are_compiled_at_once_and_traced_one_after_another():
    tracing, most, compiling = [], [], threading.Barrier(3)

    def compiled():
        compiling.wait(60)
        return SimpleNamespace(output_shardings=None)

    def lower(*_):
        tracing.append(None)
        most.append(len(tracing))
        time.sleep(0.05)  # so that another thread would begin
        tracing.pop()
        return SimpleNamespace(compile=compiled)

    with two_gradients(lower):
        compiling.wait(60)
    assert most == [1, 1]


def test_what_waits_to_be_traced_at_the_end_is_left():
    begun, go = threading.Event(), threading.Event()
    traced = []

    def lower(*_):
        traced.append(None)
        begun.set()
        assert go.wait(60)
        return SimpleNamespace(compile=lambda: SimpleNamespace(output_shardings=None))

    with two_gradients(lower) as both:
        assert begun.wait(60)
        threading.Thread(target=lambda: (both.ended.wait(60), go.set())).start()
    assert len(traced) == 1


@pytest.fixture
def all_at_once(monkeypatch):
    """Requests for gradients and losses are done before the program goes on; gets a list of all requests."""
    request = BackgroundCompiler.request

    def begin():
        asked = []

        def then_wait(self, names):
            request(self, names)
            asked.extend(names)
            if not any(name.kind == "prediction" for name in names):
                while self._waiting or self._running:
                    threading.Event().wait(0.01)

        monkeypatch.setattr(background_compiler.BackgroundCompiler, "request", then_wait)
        return asked

    return begin


ACCUMULATED = {"data__batch__accumulate": 3}
WITH_PMAP = {"mesh__data": 2, "parallel": "pmap"}
ON_A_MESH = {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}


@pytest.mark.parametrize(
    "more",
    drills_but(
        [{}, ACCUMULATED, ON_A_MESH, ON_A_MESH | {"parallel": "shard_map"} | ACCUMULATED, WITH_PMAP],
        [{}],
    ),
)
@pytest.mark.usefixtures("own_programs")
def test_updates_and_validations_call_what_was_compiled_ahead_and_parameters_are_the_same(
    tmp_path, monkeypatch, all_at_once, more
):
    """Nothing compiles where it is called.

    All shapes are finished before the first state is made, and the searches while the validation waits for them.
    """
    options = {"data__batch__shapes": 2, "data__batch__tokens": 400, **more}
    options |= {
        "training__max_steps": 8,
        "training__validate_every": 7,
        "training__report_every": 1,
        "search__beam_size": 1,
    }
    made, validating, lower = [], threading.Event(), ProgramsAhead._lower

    def counted(module, name):
        """Lists how many programs each call of a function compiles."""
        function, counts = getattr(module, name), []

        def call(*args, **kwargs):
            with CompileCounter() as compiled:
                found = function(*args, **kwargs)
            counts.append(compiled.count)
            validating.set()
            return found

        monkeypatch.setattr(module, name, call)
        return counts

    validations, searches = counted(validation, "evaluate"), counted(translation_task, "translate")
    train(tiny.config(**options), tmp_path / "plain")
    asked, state_program = all_at_once(), opening.state_program
    forget()
    jax.clear_caches()  # other tests in this process may have compiled these searches
    validating.clear()
    monkeypatch.setattr(ProgramsAhead, "_lower", lambda *of: validating.wait(60) and lower(*of))

    def program(*given, **sizes):
        begin = state_program(*given, **sizes)
        return lambda key: made.append(len(asked)) or begin(key)

    monkeypatch.setattr(opening, "state_program", program)
    train(tiny.config(**options, training__compile_ahead=1, training__validate_bleu=True), tmp_path / "ahead")
    counts = {
        name: [line["compilations"] for line in tiny.metrics(tmp_path / name) if line["split"] == "train"][:7]
        for name in ("plain", "ahead")
    }
    assert counts["plain"][-1] > counts["plain"][0]  # shapes that come later
    kinds = [name.kind for name in dict.fromkeys(asked)]
    assert kinds == sorted(kinds)  # gradients, loss, prediction
    assert kinds.count("gradients") == 2
    assert made == [len(kinds) - kinds.count("prediction")]
    if more != WITH_PMAP:  # whose gradients cannot be compiled ahead
        assert counts["ahead"][-1] == counts["ahead"][0]
    plain, ahead_of_them = validations[:3], validations[3:]  # at step 7, at the end, and of the test set
    assert plain[0] > 0
    assert ahead_of_them[:2] == [0, 0]
    assert searches == [0, 0, 0]
    assert tiny.digests(tmp_path / "plain", 8)["params"] == tiny.digests(tmp_path / "ahead", 8)["params"]


@pytest.mark.parametrize(
    ("platform", "processes", "cores", "threads"),
    [
        ("cpu", 1, 16, 0),
        ("gpu", 1, 16, 8),
        ("gpu", 2, 16, 0),
        ("tpu", 1, 96, 8),
        ("tpu", 2, 12, 6),
        ("tpu", 1, 2, 2),
        ("gpu", 1, None, 2),
    ],
)
def test_accelerators_compile_ahead_by_default(monkeypatch, platform, processes, cores, threads):
    monkeypatch.setattr(background_compiler.distributed.jax, "process_count", lambda: processes)
    monkeypatch.setattr(background_compiler.os, "cpu_count", lambda: cores)
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    assert background_compiler.default_threads(mesh) == threads
