"""Exchanges in compiled programs: known ones compiled for eight devices, and excerpts of programs for TPUs and GPUs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.scaling import collectives, hlo

SIZES = {"data": 2, "fsdp": 2, "tensor": 2}
WORDS = 1024
"""Elements of float32 on each device."""


def found(function, in_specs, out_specs, *shapes):
    """The exchanges of a function of parts, compiled for a mesh of (2, 2, 2)."""
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 2, 2), tuple(SIZES))
    given = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, in_specs, strict=True)
    ]
    mapped = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return collectives.of_program(hlo.parse(jax.jit(mapped).lower(*given).compile().as_text()), SIZES)


@pytest.mark.parametrize("axes", [("fsdp",), ("data", "tensor"), tuple(SIZES)])
def test_an_all_reduce_is_found_on_its_axes_with_its_bytes(axes):
    (one,) = found(lambda x: jax.lax.psum(x, axes), (P(),), P(), (WORDS,))
    n = 2 ** len(axes)
    assert (one.kind, one.axis, one.times, one.asynchronous) == ("all-reduce", "+".join(axes), 1, False)
    assert (one.size, one.wire, len(one.members)) == (4 * WORDS, 2 * 4 * WORDS * (n - 1) / n, n)


@pytest.mark.parametrize(
    ("kind", "function", "before", "after", "share"),
    [
        ("all-gather", lambda x: jax.lax.all_gather(x, "fsdp", tiled=True), P("fsdp"), P(), 0.5),
        ("reduce-scatter", lambda x: jax.lax.psum_scatter(x, "fsdp", tiled=True), P(), P("fsdp"), 0.5),
        ("all-to-all", lambda x: jax.lax.all_to_all(x, "fsdp", 0, 1, tiled=True), P(), P(), 0.5),
        ("collective-permute", lambda x: jax.lax.ppermute(x, "fsdp", [(0, 1), (1, 0)]), P(), P(), 1),
    ],
)
def test_other_kinds_send_a_share_of_the_array_between_two_devices(kind, function, before, after, share):
    (one,) = found(function, (before,), after, (32, WORDS // 32))
    assert (one.kind, one.axis, one.size, one.wire) == (kind, "fsdp", 4 * WORDS, 4 * WORDS * share)


def test_an_exchange_in_a_loop_counts_as_often_as_it_runs():
    trips = 5

    def looped(x):
        return jax.lax.fori_loop(0, trips, lambda _, x: jnp.sin(jax.lax.psum(x, "data")), x)

    (one,) = found(looped, (P(),), P(), (WORDS,))
    assert (one.times, one.size) == (trips, trips * 4 * WORDS)


def program_of(lines, *, others=""):
    return hlo.parse(f"HloModule test\n\n{others}ENTRY %main (p: f32[8,4]) -> f32[8,4] {{\n{lines}\n}}\n")


of_mesh = partial(collectives.of_program, mesh={"data": 2, "fsdp": 4, "tensor": 1})


@pytest.mark.parametrize(
    ("groups", "axis", "members"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", "fsdp", (0, 1, 2, 3)),
        ("{{0,4},{1,5},{2,6},{3,7}}", "data", (0, 4)),
        ("[2,4]<=[8]", "fsdp", (0, 1, 2, 3)),
        ("[4,2]<=[2,4]T(1,0)", "data", (0, 4)),
        ("[1,8]<=[8]", "data+fsdp", tuple(range(8))),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", "fsdp", (0, 1, 2, 3)),
        ("mesh['a'=2,'b'=4] {'a'}", "data", (0, 4)),
        ("mesh['a'=2,'b'=4] {'a','b'}", "data+fsdp", tuple(range(8))),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", "data", (0, 4)),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", "part of fsdp", (0, 2)),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", "part of fsdp", (0, 1)),
        ("{}", "data+fsdp", tuple(range(8))),
        ("{{0,5},{1,4},{2,7},{3,6}}", "part of data+fsdp", (0, 5)),
    ],
)
def test_every_way_to_write_groups_is_read(groups, axis, members):
    program = program_of(
        f"  %p = f32[8,4]{{1,0}} parameter(0)\n  ROOT %r = f32[8,4]{{1,0}} all-reduce(%p), channel_id=1, "
        f"replica_groups={groups}, use_global_device_ids=true, to_apply=%add"
    )
    (one,) = of_mesh(program)
    assert (one.axis, one.members) == (axis, members)


TPU_PAIR = """\
  %p = bf16[3,16,512]{2,1,0:T(8,128)(2,1)S(1)} parameter(0)
  %collective-permute-start = (bf16[3,16,512]{2,1,0:T(8,128)(2,1)S(1)}, bf16[3,16,512]{2,1,0:T(8,128)(2,1)S(1)}, \
u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p), channel_id=62, \
source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}, metadata={op_name="jit(first)/dot_general"}
  ROOT %collective-permute-done = bf16[3,16,512]{2,1,0:T(8,128)(2,1)S(1)} \
collective-permute-done(%collective-permute-start)"""


def test_a_pair_of_start_and_done_is_one_asynchronous_exchange():
    (one,) = of_mesh(program_of(TPU_PAIR))
    assert (one.kind, one.axis, one.times, one.asynchronous) == ("collective-permute", "fsdp", 1, True)
    assert one.size == 3 * 16 * 512 * 2


def permuted(*pairs):
    """A program with permutations of these pairs."""
    made = [f"  %c{i} = f32[8,4]{{1,0}} collective-permute(%p), source_target_pairs={x}" for i, x in enumerate(pairs)]
    return program_of("\n".join(["  %p = f32[8,4]{1,0} parameter(0)", *made]))


def test_pairs_of_one_device_do_not_count():
    (one,) = of_mesh(permuted("{{0,0},{1,5},{2,2}}"))
    assert (one.axis, one.members) == ("data", (1, 5))
    assert of_mesh(permuted("{{0,0},{1,1}}", "{}")) == ()


def test_permutations_over_one_axis_have_the_pairs_of_all():
    (one,) = of_mesh(permuted("{{0,1},{1,0}}", "{{1,0},{2,3}}"))
    assert (one.axis, one.times, one.members) == ("fsdp", 2, (0, 1, 1, 0, 2, 3))


SEND = """\
  %p = bf16[48,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %after-all = token[] after-all()
  ROOT %send = (bf16[48,8,128]{2,1,0:T(8,128)(2,1)}, u32[], token[]) send(%p, %after-all), channel_id=7, \
is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",\
_xla_host_transfer_rendezvous="all-gather.91_0",_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="KIND"}"""


@pytest.mark.parametrize(
    ("name", "kind", "size", "wire"),
    [
        ("ALL_REDUCE", "all-reduce", 1, 1),
        ("ALL_GATHER", "all-gather", 2, 1),
        ("ALL_TO_ALL", "all-to-all", 1, 0.5),
        ("ONE_TO_ONE", "collective-permute", 1, 1),
    ],
)
def test_what_hosts_send_between_two_slices_is_an_exchange_over_data(name, kind, size, wire):
    (one,) = of_mesh(program_of(SEND.replace("KIND", name)), slices=[0, 4])
    assert (one.kind, one.axis, one.members, one.asynchronous) == (kind, "data between slices", (0, 4), True)
    part = 48 * 8 * 128 * 2
    assert (one.size, one.wire) == (size * part, wire * part)


def test_another_send_is_no_exchange():
    assert of_mesh(program_of(SEND.replace("_xla_megascale_transfer_type", "other"))) == ()


CHAIN = """\
%fused.{number} (a: f32[40,16]) -> f32[40,64] {{
  %a = f32[40,16]{{0,1:T(8,128)S(1)}} parameter(0)
  ROOT %all-gather.{number} = f32[40,64]{{0,1:T(8,128)}} all-gather(%a), channel_id=1, \
replica_groups=mesh['axis_0'=2,'axis_1'=4] {{'axis_1'}}, dimensions={{1}}, frontend_attributes={{chain_id="0"}}
}}

"""
CALLS = """\
  %p = f32[40,16]{0,1:T(8,128)} parameter(0)
  %async-collective-start = f32[40,64]{0,1} fusion(%p), kind=kCustom, calls=%fused.1
  %async_collective_fusion = f32[40,64]{0,1} fusion(%p), kind=kOutput, calls=%fused.2
  ROOT %async-collective-done = f32[40,64]{0,1} fusion(%p), kind=kCustom, calls=%fused.3"""


def test_a_chain_of_fusions_of_a_tpu_is_one_asynchronous_exchange():
    """The compiler prints one all-gather in the operation that starts it, in each beside it, and in the last."""
    program = program_of(CALLS, others="".join(CHAIN.format(number=i) for i in (1, 2, 3)))
    (one,) = of_mesh(program)
    assert (one.times, one.size, one.asynchronous) == (1, 40 * 64 * 4, True)


@pytest.mark.parametrize(
    ("line", "asynchronous"),
    [
        ('all-gather(%p), dimensions={0}, frontend_attributes={async_collective_name="all-gather-start.7"}', False),
        ("all-reduce-start(%p)", True),
        ('all-reduce-start(%p), backend_config={"collective_backend_config":{"is_sync":true}}', False),
    ],
    ids=["synchronous again", "start", "in line on a GPU"],
)
def test_a_start_overlaps_unless_the_compiler_runs_it_in_line(line, asynchronous):
    program = program_of(
        f"  %p = f32[8,4]{{1,0}} parameter(0)\n  ROOT %r = f32[32,4]{{1,0}} {line}, replica_groups=[2,4]<=[8]"
    )
    assert [one.asynchronous for one in of_mesh(program)] == [asynchronous]


def test_a_wrapped_exchange_is_asynchronous():
    wrapped = """\
%wrapped (a: f32[8,4]) -> f32[2,4] {
  %a = f32[8,4]{1,0} parameter(0)
  ROOT %rs = f32[2,4]{1,0} reduce-scatter(%a), channel_id=2, replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add
}

"""
    lines = """\
  %p = f32[8,4]{1,0} parameter(0)
  %start = ((f32[8,4]{1,0}), f32[2,4]{1,0}) async-start(%p), calls=%wrapped
  ROOT %done = f32[2,4]{1,0} async-done(%start), calls=%wrapped"""
    (one,) = of_mesh(program_of(lines, others=wrapped))
    assert (one.kind, one.times, one.size, one.wire, one.asynchronous) == ("reduce-scatter", 1, 128, 96, True)


def test_an_all_reduce_that_a_tpu_fuses_with_a_slice_is_a_reduce_scatter():
    fused = """\
%all-reduce-scatter.1 (a: f32[8,4]) -> f32[2,4] {
  %a = f32[8,4]{1,0} parameter(0)
  %all-reduce.3 = f32[8,4]{1,0} all-reduce(%a), channel_id=2, replica_groups=[2,4]<=[8], to_apply=%add
  %i = u32[] partition-id()
  ROOT %s = f32[2,4]{1,0} dynamic-slice(%all-reduce.3, %i, %i), dynamic_slice_sizes={2,4}
}

"""
    lines = """\
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %f = f32[2,4]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1"""
    (one,) = of_mesh(program_of(lines, others=fused))
    assert (one.kind, one.wire) == ("reduce-scatter", 96)
