"""Bytes of memory that a compiled program moves, against programs of known cost."""

import jax
import jax.numpy as jnp
import pytest

from convs2s_jax.scaling import hlo, traffic


def compiled(function, *shapes):
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*given).compile()


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: x + 1, [(1000,)]),
        (lambda x, y: x @ y, [(64, 32), (32, 16)]),
        (lambda x: jnp.sum(x * x), [(1000,)]),
        (lambda x, y: (x @ y, jnp.sin(x)), [(64, 64), (64, 64)]),
    ],
)
def test_memory_traffic_without_loops_is_that_of_xla(function, shapes):
    program = compiled(function, *shapes)
    assert traffic.memory_bytes(hlo.parse(program.as_text()))[0] == pytest.approx(
        program.cost_analysis()["bytes accessed"], rel=0.02
    )


def test_a_loop_reads_what_all_its_trips_read():
    x, trips = (256, 256), 6
    program = compiled(lambda x: jax.lax.fori_loop(0, trips, lambda _, x: jnp.sin(x), x), x)
    size = 4 * 256 * 256
    assert 2 * trips * size <= traffic.memory_bytes(hlo.parse(program.as_text()))[0] <= (2 * trips + 4) * size


def test_a_loop_over_layers_reads_each_layer_once():
    """Of the stacked kernels each trip reads one, though the operation is given all of them."""
    layers, side = 16, 128
    program = compiled(
        lambda ws, x: jax.lax.scan(lambda x, w: (x @ w, None), x, ws)[0], (layers, side, side), (1, side)
    )
    whole = 4 * layers * side * side
    assert whole <= traffic.memory_bytes(hlo.parse(program.as_text()))[0] <= 4 * whole


def test_an_update_in_place_writes_the_update_only():
    program = compiled(
        lambda ys, y: jax.lax.scan(lambda y, _: (y + 1, y), y, None, length=64)[1].sum() + ys.sum(), (8,), (64,)
    )
    assert traffic.memory_bytes(hlo.parse(program.as_text()))[0] <= 12 * 4 * 64 * 64


TPU = """\
HloModule test

ENTRY %main (p: f32[256]) -> f32[256] {
  %p = f32[256]{0:T(256)} parameter(0)
  %copy-start = (f32[256]{0:T(256)S(1)}, f32[256]{0:T(256)}, u32[]{:S(2)}) copy-start(%p)
  %copy-done = f32[256]{0:T(256)S(1)} copy-done(%copy-start)
  %sine = f32[256]{0:T(256)S(1)} sine(%copy-done)
  ROOT %add = f32[256]{0:T(256)} add(%sine, %copy-done)
}
"""


def test_arrays_on_the_chip_are_no_memory_traffic():
    """The copy reads from memory, and the sum writes to it."""
    assert traffic.memory_bytes(hlo.parse(TPU))[0] == 2 * 4 * 256


BESIDE = """\
HloModule test

%start (a: bf16[1,64]) -> (bf16[1,64], bf16[4,64], u32[]) {
  %a = bf16[1,64]{1,0} parameter(0)
  %gather = bf16[4,64]{1,0} all-gather(%a), frontend_attributes={chain_id="0"}
  ROOT %begun = (bf16[1,64], bf16[4,64], u32[]{:S(2)}) custom-call(%gather), custom_call_target="AsyncCollectiveStart"
}

%beside (b: bf16[1,64], c: bf16[4,64], d: u32[], x: f32[256]) -> (f32[256], bf16[1,64], bf16[4,64], u32[]) {
  %b = bf16[1,64]{1,0} parameter(0)
  %c = bf16[4,64]{1,0} parameter(1)
  %d = u32[]{:S(2)} parameter(2)
  %x = f32[256]{0} parameter(3)
  %going = bf16[4,64]{1,0} all-gather(%b), frontend_attributes={chain_id="0"}
  %sine = f32[256]{0} sine(%x)
  ROOT %all = (f32[256]{0}, bf16[1,64]{1,0}, bf16[4,64]{1,0}, u32[]{:S(2)}) tuple(%sine, %b, %c, %d)
}

ENTRY %main (p: bf16[1,64], q: f32[256]) -> (f32[256], bf16[1,64], bf16[4,64], u32[]) {
  %p = bf16[1,64]{1,0} parameter(0)
  %q = f32[256]{0} parameter(1)
  %first = (bf16[1,64], bf16[4,64], u32[]{:S(2)}) fusion(%p), output_to_operand_aliasing={{0}: (0, {})}, calls=%start
  %e = bf16[1,64]{1,0} get-tuple-element(%first), index=0
  %f = bf16[4,64]{1,0} get-tuple-element(%first), index=1
  %g = u32[]{:S(2)} get-tuple-element(%first), index=2
  ROOT %then = (f32[256], bf16[1,64], bf16[4,64], u32[]{:S(2)}) fusion(%e, %f, %g, %q), ALIASES, calls=%beside
}
""".replace("ALIASES", "output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {}), {3}: (2, {})}")


def test_an_exchange_beside_operations_is_memory_traffic_once():
    """Where it starts, the part is read and passed on, and the whole is written. The sine reads and writes its own."""
    part, whole, own = 2 * 64, 2 * 4 * 64, 4 * 256
    assert traffic.memory_bytes(hlo.parse(BESIDE))[0] == 2 * part + whole + 2 * own


GPU = """\
HloModule test

%part (a: bf16[4,64,64], i: s32[]) -> bf16[1,64,64] {
  %a = bf16[4,64,64]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %one = bf16[1,64,64]{2,1,0} dynamic-slice(%a, %i, %zero, %zero), dynamic_slice_sizes={1,64,64}
}

%triton (b: bf16[64,64], c: bf16[64,64]) -> bf16[64,64] {
  %b = bf16[64,64]{1,0} parameter(0)
  %c = bf16[64,64]{1,0} parameter(1)
  ROOT %dot = bf16[64,64]{1,0} dot(%b, %c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (p: bf16[4,64,64], n: s32[]) -> bf16[64,64] {
  %p = bf16[4,64,64]{2,1,0} parameter(0)
  %n = s32[] parameter(1)
  %begun = ((bf16[4,64,64]{2,1,0}, s32[]), bf16[1,64,64]{2,1,0}, u32[]) fusion-start(%p, %n), kind=kLoop, calls=%part
  %done = bf16[1,64,64]{2,1,0} fusion-done(%begun)
  %w = bf16[64,64]{1,0} bitcast(%done)
  %first = bf16[64,64]{1,0} fusion(%w, %w), kind=kCustom, calls=%triton
  %conv = (bf16[64,64]{1,0}, u8[0]{0}) custom-call(%first, %w), custom_call_target="__cudnn$convForward"
  %y = bf16[64,64]{1,0} get-tuple-element(%conv), index=0
  ROOT %sine = bf16[64,64]{1,0} sine(%y)
}
"""


def test_of_a_gpus_program_operations_with_products_are_told_from_others():
    """A part is read and written beside other operations; two products read two arrays and write one; a sine."""
    size = 2 * 64 * 64
    total, products = traffic.memory_bytes(hlo.parse(GPU))
    assert products == 2 * 3 * size
    assert total - products == pytest.approx(4 * size, abs=8)


COMBINED = """\
HloModule test

ENTRY %main (p: f32[1,64], q: f32[64,4], r: f32[8]) -> f32[4,64] {
  %p = f32[1,64]{1,0} parameter(0)
  %q = f32[64,4]{1,0} parameter(1)
  %r = f32[8]{0} parameter(2)
  %g = ((f32[1,64]{1,0}, f32[64,4]{1,0}), (f32[4,64]{1,0}, f32[64,16]{1,0})) all-gather-start(%p, %q), dimensions={0}
  %gathered = (f32[4,64]{1,0}, f32[64,16]{1,0}) all-gather-done(%g)
  %s = (f32[1,64]{1,0}, f32[8]{0}) all-reduce-start(%p, %r), to_apply=%sum
  %summed = (f32[1,64]{1,0}, f32[8]{0}) all-reduce-done(%s)
  ROOT %first = f32[4,64]{1,0} get-tuple-element(%gathered), index=0
}
"""


def test_combined_exchanges_count_each_array():
    """As single ones: each array is read and written in the size of the smaller of its two forms."""
    assert traffic.memory_bytes(hlo.parse(COMBINED))[0] == 2 * 4 * (64 + 256) + 2 * 4 * (64 + 8)


COPIED = """\
HloModule test

%condition (c: (s32[], f32[4,64], f32[64])) -> pred[] {
  %bound = s32[] constant(4)
  %c = (s32[], KEPT, f32[64]{0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  ROOT %lt = pred[] compare(%i, %bound), direction=LT
}

%body (b: (s32[], f32[4,64], f32[64])) -> (s32[], f32[4,64], f32[64]) {
  %b = (s32[], KEPT, f32[64]{0}) parameter(0)
  %n = s32[] get-tuple-element(%b), index=0
  %kept = KEPT get-tuple-element(%b), index=1
  %x = f32[64]{0} get-tuple-element(%b), index=2
  %row = f32[1,64]{1,0} bitcast(%x)
  %zero = s32[] constant(0)
  %out = ((KEPT, f32[1,64]{1,0}, s32[], s32[]), KEPT, u32[]{:S(2)}) dynamic-update-slice-start(%kept, %row, %n, %zero)
  %out.done = KEPT dynamic-update-slice-done(%out)
  %back = ((KEPT, s32[], s32[]), f32[1,64]{1,0}, u32[]{:S(2)}) dynamic-slice-start(%out.done, %n, %zero)
  %back.done = f32[1,64]{1,0} dynamic-slice-done(%back)
  %y = f32[64]{0} bitcast(%back.done)
  %one = s32[] constant(1)
  %next = s32[] add(%n, %one)
  ROOT %r = (s32[], KEPT, f32[64]{0}) tuple(%next, %out.done, %y)
}

ENTRY %main (p: f32[64], q: f32[4,64]) -> f32[64] {
  %p = f32[64]{0} parameter(0)
  %q = f32[4,64]{1,0} parameter(1)
  %start = (KEPT, f32[4,64]{1,0}, u32[]{:S(2)}) copy-start(%q)
  %host = KEPT copy-done(%start)
  %near = f32[64]{0:S(1)} copy(%p)
  %first = s32[] constant(0)
  %t = (s32[], KEPT, f32[64]{0}) tuple(%first, %host, %p)
  %w = (s32[], KEPT, f32[64]{0}) while(%t), condition=%condition, body=%body
  %rows = KEPT get-tuple-element(%w), index=1
  %all = f32[4,64]{1,0} copy(%rows)
  ROOT %last = f32[64]{0} get-tuple-element(%w), index=2
}
""".replace("KEPT", "f32[4,64]{1,0:S(5)}")


def test_a_copy_counts_on_its_side_in_memory():
    """Four turns write and read a row of 256 bytes; before them all four rows leave, after them they come back."""
    own = 256 + 4 * 4 * 3  # p, which is copied to memory on the chip, and what the loop counts and compares
    assert traffic.memory_bytes(hlo.parse(COPIED))[0] - 2 * (4 * 256 + 1024) == own
