"""Devices laid out as (data, fsdp, tensor)."""

import dataclasses
from types import SimpleNamespace

import jax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training import mesh, sharding
from convs2s_jax.training.mesh import MeshConfig


@pytest.mark.parametrize(
    ("values", "devices", "expected"),
    [
        ({}, 1, (1, 1, 1)),
        ({}, 8, (8, 1, 1)),
        ({"fsdp": 4}, 8, (2, 4, 1)),
        ({"data": 2, "fsdp": -1, "tensor": 2}, 16, (2, 4, 2)),
        ({"data": 1}, 8, (1, 1, 1)),
        ({"data": 2, "fsdp": 1, "tensor": -1}, 6, (2, 1, 3)),
    ],
)
def test_minus_one_takes_the_rest(values, devices, expected):
    assert mesh.shape(MeshConfig(**values), devices) == expected


@pytest.mark.parametrize(
    ("values", "devices", "message"),
    [
        ({"data": 0}, 8, r"^data is 0: use 1 or more devices, or -1 for the rest$"),
        ({"fsdp": -1}, 8, r"^data and fsdp are -1: only one axis can take the rest; set the others to a number$"),
        ({"data": 4, "fsdp": 4}, 8, r"^mesh: .* is 16 devices, but there are only 8: lower mesh\.data or mesh\.fsdp$"),
        ({"fsdp": 4}, 1, r"^mesh: fsdp 4 \* tensor 1 is 4 devices, but there is only 1: lower mesh\.fsdp$"),
        ({"fsdp": 3}, 8, r"^mesh: 8 devices cannot be divided by fsdp 3 \* tensor 1: use numbers whose product div"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(values, devices, message):
    with pytest.raises(UserError, match=message):
        mesh.shape(MeshConfig(**values), devices)


def test_fewer_devices_than_there_are_may_be_used_by_one_process():
    made = mesh.make(MeshConfig(data=2, tensor=2))
    assert dict(made.shape) == {"data": 2, "fsdp": 1, "tensor": 2}
    assert list(made.devices.flat) == jax.devices()[:4]
    assert sharding.row_shards(mesh.make(MeshConfig(data=2, fsdp=2, tensor=2))) == 4


def test_several_processes_use_all_their_devices():
    devices = [SimpleNamespace(process_index=i // 2) for i in range(4)]
    with pytest.raises(UserError, match=r"^mesh: 2 of 4 devices: several processes must use all of them; set one axis"):
        mesh.make(MeshConfig(data=2), devices)


@dataclasses.dataclass(frozen=True)
class Chip:
    id: int
    slice_index: int
    process_index: int = 0
    platform: str = "gpu"
    device_kind: str = "other"


@pytest.mark.parametrize(
    ("platform", "parallel", "within"),
    [("tpu", "jit", (1, 4, 1)), ("tpu", "pmap", (4, 1, 1)), ("gpu", "jit", (4, 1, 1))],
)
def test_state_is_cut_within_slices_of_tpus(monkeypatch, platform, parallel, within):
    chips = [Chip(id=i, slice_index=i // 4, platform=platform) for i in range(8)]
    asked = []
    monkeypatch.setattr(mesh, "Mesh", lambda devices, _: devices)
    monkeypatch.setattr(mesh.mesh_utils, "create_hybrid_device_mesh", lambda *sizes, **_: asked.append(sizes[:2]))
    mesh.make(MeshConfig(), chips, parallel=parallel)
    assert asked == [(within, (2, 1, 1))]


@pytest.mark.parametrize("sizes", [{"tensor": 2}, {"fsdp": 8}, {"fsdp": 2, "tensor": 4}, {"fsdp": 16}, {}])
@pytest.mark.parametrize("slices", [1, 2])
def test_axes_of_a_torus_are_divided_in_one_slice_and_in_several(monkeypatch, sizes, slices):
    """JAX finds places for parts of the physical axes (4, 4) only where it is told that it may divide them."""
    kind = {"platform": "tpu", "device_kind": "TPU v5 lite", "core_on_chip": 0}
    chips = [
        SimpleNamespace(id=i, process_index=i // 4, coords=(i % 4, i % 16 // 4, 0), slice_index=i // 16, **kind)
        for i in range(16 * slices)
    ]
    monkeypatch.setattr(mesh, "Mesh", lambda devices, _: devices)
    made = mesh.make(MeshConfig(**sizes), chips)
    assert sorted(chip.id for chip in made.flat) == list(range(16 * slices))
    fsdp, tensor = sizes.get("fsdp", 1), sizes.get("tensor", 1)
    if fsdp == 1 and slices > 1:  # then the rows of a slice lie along fsdp
        fsdp = 16 // tensor
    assert made.shape == (16 * slices // (fsdp * tensor), fsdp, tensor)
    assert all(len({chip.slice_index for chip in part}) == 1 for part in made.reshape(slices, -1))


def test_a_mesh_with_other_axes_is_refused():
    own = jax.make_mesh((2,), ("mine",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    sentence = (
        r"^mesh has the axes \('mine',\): expected \('data', 'fsdp', 'tensor'\), as convs2s.make_mesh creates them$"
    )
    with pytest.raises(ValueError, match=sentence):
        sharding.row_shards(own)


def test_what_would_cross_slices_of_a_tpu_is_refused():
    chips = [Chip(id=i, slice_index=i // 4, platform="tpu") for i in range(8)]
    with pytest.raises(
        UserError, match=r"^mesh.data is 1 on 2 slices: use a multiple of 2, since fsdp and tensor cannot"
    ):
        mesh.make(MeshConfig(data=1, fsdp=-1), chips)
