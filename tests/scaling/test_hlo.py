"""The text of compiled programs: arrays, loops and their trips."""

import jax
import jax.numpy as jnp
import pytest

from convs2s_jax.scaling import hlo
from convs2s_jax.scaling.hlo import Buffer


def compiled(function, *shapes):
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*given).compile()


@pytest.mark.parametrize(
    ("text", "expected", "sizes"),
    [
        ("f32[8,4]{1,0}", (Buffer("f32", (8, 4)),), [128]),
        ("bf16[3,16,512]{2,1,0:T(8,128)(2,1)S(1)}", (Buffer("bf16", (3, 16, 512), 1),), [49152]),
        ("(s32[], pred[7]{0})", (Buffer("s32", ()), Buffer("pred", (7,))), [4, 7]),
        ("s4[16]", (Buffer("s4", (16,)),), [8]),
        ("f8e4m3fn[4]{0}", (Buffer("f8e4m3fn", (4,)),), [4]),
        ("(token[], c64[2])", (Buffer("token", ()), Buffer("c64", (2,))), [0, 16]),
    ],
)
def test_types_and_sizes_are_read(text, expected, sizes):
    found = hlo.buffers(text)
    assert found == expected
    assert [buffer.bytes for buffer in found] == sizes


def test_nested_loops_multiply():
    def nested(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: jax.lax.fori_loop(0, 5, lambda _, x: jnp.sin(x) @ x, x), x)

    program = hlo.parse(compiled(nested, (64, 64)).as_text())
    assert max(how.times for how in hlo.runs(program).values()) == 15


LOOP = """\
HloModule test

%condition (c: (s32[], f32[4])) -> pred[] {
  %bound = s32[]{:T(128)} constant(9)
  %c = (s32[]{:T(128)}, f32[4]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%c), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  ROOT %b = (s32[], f32[4]{0}) parameter(0)
}

ENTRY %main (p: f32[4]) -> (s32[], f32[4]) {
  %p = f32[4]{0} parameter(0)
  %begin = s32[]{:T(128)} constant(2)
  %copied = s32[]{:T(128)} copy(%begin)
  %t = (s32[], f32[4]{0}) tuple(%copied, %p)
  ROOT %w = (s32[], f32[4]{0}) while(%t), condition=%condition, body=%body
}
"""


def test_trips_that_a_tpu_program_does_not_note_are_read_from_the_condition():
    assert hlo.runs(hlo.parse(LOOP))["body"].times == 7


def test_an_unrolled_loop_adds_more_than_one_to_its_counter():
    """A TPU's loops of products and permutations add 2; 2, 4, 6, 8 are below 9."""
    body = """  %b = (s32[], f32[4]{0}) parameter(0)
  %old = s32[]{:T(128)} get-tuple-element(%b), index=0
  %x = f32[4]{0} get-tuple-element(%b), index=1
  %two = s32[]{:T(128)} constant(2)
  %new = s32[]{:T(128)} add(%old, %two)
  ROOT %r = (s32[], f32[4]{0}) tuple(%new, %x)
"""
    text = LOOP.replace("  ROOT %b = (s32[], f32[4]{0}) parameter(0)\n", body)
    assert hlo.runs(hlo.parse(text))["body"].times == 4


def test_trips_that_are_noted_are_believed():
    noted = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"4"}}')
    assert hlo.runs(hlo.parse(noted))["body"].times == 4
