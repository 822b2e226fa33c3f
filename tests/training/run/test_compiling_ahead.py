"""Programs compiled before they are needed: in order, once, and the very programs that updates call."""

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from convs2s_jax.data.shapes import Shape
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run import programs as module
from convs2s_jax.training.run.compilations import CompileCounter, forget
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import Programs
from tests import tiny
from tests.helpers import drills_but


class Compiling:
    """Lowering and compiling of gradients: each compilation lasts until it is let go."""

    def __init__(self):
        self.lowered, self.go, self.begun = [], threading.Event(), threading.Event()

    def lower(self, _params, batch, _key):
        self.lowered.append(batch.src.shape[1])
        return SimpleNamespace(compile=self.compile)

    def compile(self):
        self.begun.set()
        assert self.go.wait(60)
        raise MemoryError("the caller meets it again")


@pytest.fixture
def programs(monkeypatch):
    """Makes programs whose gradients are lowered by a function, with this number of threads."""

    def made(lower, threads):
        step = SimpleNamespace(first=SimpleNamespace(lower=lower), add=None)
        known = {"compile_run": step, "placed_state": SimpleNamespace(params={}), "evaluator": None}
        for name, value in known.items():
            monkeypatch.setattr(module, name, lambda *_, value=value, **__: value)
        key = SimpleNamespace(model=None, rules=(), parallel="jit", accumulates=False)
        return Programs(key, make(MeshConfig(data=1)), {}, threads)

    return made


def batch(length):
    side = SimpleNamespace(shape=(3, length))
    return SimpleNamespace(src=side, tgt=side)


SHAPES = [Shape(n, n, 3) for n in (4, 5, 6, 7)]


def test_programs_are_compiled_in_order_and_once_and_those_that_have_not_begun_are_left_to_the_caller(
    programs,
):
    work = Compiling()
    with programs(work.lower, threads=1) as made:
        made.request_updates(SHAPES)
        made.request_updates(SHAPES)
        assert work.begun.wait(60)
        made._await(batch(6))  # has not begun
        assert work.lowered == [4]
        work.go.set()
        made._await(batch(4))
        made._requested[3, 7, 7].exception(60)
    assert work.lowered == [4, 5, 7]


def test_a_second_signal_waits_for_nothing(programs):
    work = Compiling()
    with contextlib.suppress(KeyboardInterrupt), programs(work.lower, threads=1) as made:
        made.request_updates(SHAPES)
        assert work.begun.wait(60)
        raise KeyboardInterrupt
    assert work.lowered == [4]
    work.go.set()


ACCUMULATED = {"data__batch__accumulate": 3}
WITH_PMAP = {"mesh__data": 2, "parallel": "pmap"}
ON_A_MESH = {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}
NAMED = {"mesh__data": 2, "mesh__fsdp": 2, "parallel": "shard_map"}


@pytest.mark.parametrize(
    "more",
    drills_but(
        [{}, ACCUMULATED, ON_A_MESH, NAMED | ACCUMULATED, WITH_PMAP],
        [{}],
    ),
)
@pytest.mark.usefixtures("own_programs")
def test_updates_call_what_was_compiled_ahead_and_parameters_are_the_same(tmp_path, monkeypatch, more):
    """Nothing compiles where it is called: all shapes are finished before the first state is made."""
    options = {"data__batch__shapes": 2, "data__batch__tokens": 400, **more}
    options |= {"training__max_steps": 8, "training__validate_every": 7, "training__report_every": 1}
    compiled, update = [], module.update  # number of programs that each update compiles

    def counted(*args, **kwargs):
        with CompileCounter() as counter:
            found = update(*args, **kwargs)
        compiled.append(counter.count)
        return found

    monkeypatch.setattr(module, "update", counted)
    train(tiny.config(**options), tmp_path / "plain")
    forget()
    request = Programs.request_updates

    def all_at_once(programs, shapes):
        request(programs, shapes)
        for future in list(programs._requested.values()):
            future.exception()

    monkeypatch.setattr(Programs, "request_updates", all_at_once)
    train(tiny.config(**options, training__compile_ahead=1), tmp_path / "ahead")
    plain, ahead = compiled[:8], compiled[8:]
    assert max(plain[1:]) > 0  # a shape that comes later
    if more != WITH_PMAP:  # whose gradients cannot be compiled ahead
        assert max(ahead[1:]) == 0
    assert tiny.digests(tmp_path / "plain", 8)["params"] == tiny.digests(tmp_path / "ahead", 8)["params"]


@pytest.mark.parametrize(
    ("platform", "processes", "cores", "threads"),
    [
        ("cpu", 1, 16, 0),
        ("gpu", 1, 16, 8),
        ("gpu", 2, 16, 0),
        ("tpu", 1, 96, 8),
        ("tpu", 1, 2, 2),
    ],
)
def test_accelerators_compile_ahead_by_default(monkeypatch, platform, processes, cores, threads):
    monkeypatch.setattr(module.distributed.jax, "process_count", lambda: processes)
    monkeypatch.setattr(module.os, "cpu_count", lambda: cores)
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    assert module.default_threads(mesh) == threads
