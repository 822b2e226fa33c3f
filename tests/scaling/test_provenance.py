"""Plans of a sweep's folder: which others may be added to them."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.scaling import provenance
from convs2s_jax.scaling.chips import CHIPS
from tests import tiny


def of_plans(*chips, **environment):
    found = provenance.of_plans(tiny.config(), {"source": 9, "target": 9}, chips, environment)
    return json.loads(json.dumps(found))  # as it is read from the folder


def test_settings_of_compilers_are_compared():
    """A process that begins with other variables compiles other programs."""
    before = of_plans("v5e")
    assert provenance.joined(before, of_plans("v5e"), Path("out")) == before
    same = of_plans("v5e", XLA_FLAGS="--xla_force_host_platform_device_count=64")
    assert provenance.joined(before, same, Path("out")) == before
    way_out = "choose another --output, or delete the folder"
    sentence = f"out has plans with XLA_FLAGS unset, but here it is '--xla_a=1 --xla_b=2'; {way_out}"
    with pytest.raises(UserError, match=sentence):
        provenance.joined(before, of_plans("v5e", XLA_FLAGS="--xla_a=1  --xla_b=2"), Path("out"))
    with pytest.raises(UserError, match="out has plans with LIBTPU_INIT_ARGS '--x', but here it is unset; choose"):
        provenance.joined(of_plans(LIBTPU_INIT_ARGS="--x"), of_plans(), Path("out"))


@pytest.mark.parametrize(
    ("name", "value"), list(zip(provenance.OPTIONS, ["O1", "O1", -0.5, -0.5, "highest"], strict=True))
)
def test_settings_of_jax_are_compared(name, value):
    if name not in jax.config.values:
        pytest.skip("this version of JAX has no such setting")
    before, default = of_plans(), jax.config.values[name]
    jax.config.update(name, value)
    try:
        with pytest.raises(UserError, match=f"out has plans with {name.upper()} .*, but here it is '{value}'; choose"):
            provenance.joined(before, of_plans(), Path("out"))
    finally:
        jax.config.update(name, default)


def test_rates_of_chips_are_compared_and_those_of_further_chips_are_added(monkeypatch):
    before = of_plans("v5e", "cpu")
    joined = provenance.joined(before, of_plans("h100"), Path("out"))
    assert joined == of_plans("v5e", "h100")
    chips = {**CHIPS, "v5e": dataclasses.replace(CHIPS["v5e"], link=1.0)}
    monkeypatch.setattr(provenance, "CHIPS", chips)
    provenance.joined(before, of_plans("h100"), Path("out"))
    with pytest.raises(UserError, match="out has plans with other rates of v5e than the table of chips; choose ano"):
        provenance.joined(joined, of_plans("v5e"), Path("out"))


def test_a_folder_that_does_not_tell_its_settings_is_refused():
    old = {name: value for name, value in of_plans().items() if name not in ("settings", "chips")}
    with pytest.raises(UserError, match="out has plans from an earlier version; choose another --output, or delete"):
        provenance.joined(old, of_plans(), Path("out"))
