"""Compiled programs are kept between commands, in a folder that stays small, whatever happens to it."""

import os
import shutil
import warnings

import jax
import pytest

from convs2s_jax.core import compiled_programs

X86 = "processor\t: 0\nvendor_id\t: Intel\ncpu MHz\t: {mhz}\nflags\t: fpu sse4_2 {flag}\n\nprocessor\t: 1\n"


@pytest.fixture
def settings(monkeypatch):
    """JAX's settings as they are where no variable is set; the session's own are put back."""
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    with warnings.catch_warnings():
        yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("settings")
def test_programs_are_kept_in_the_users_folder_of_caches_which_nobody_else_can_write(tmp_path):
    own = compiled_programs.keep({"XDG_CACHE_HOME": str(tmp_path)})
    assert own == tmp_path / "convs2s_jax" / compiled_programs.processor()
    assert jax.config.jax_compilation_cache_dir == str(own)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0
    assert own.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("setting", "value"), [("cache_dir", "/somewhere"), ("cache_dir", ""), ("enable_compilation_cache", False)]
)
@pytest.mark.usefixtures("settings")
def test_the_users_own_choice_stays(tmp_path, setting, value):
    name = f"jax_{setting}" if setting.startswith("enable") else f"jax_compilation_{setting}"
    jax.config.update(name, value)
    assert compiled_programs.keep({"XDG_CACHE_HOME": str(tmp_path)}) is None
    assert getattr(jax.config, name) == value
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "obstacle",
    ["a file in its place", "a folder that others can write", "a full disk", "a folder that cannot be written"],
)
@pytest.mark.usefixtures("settings")
def test_a_folder_that_cannot_be_used_turns_it_off(tmp_path, monkeypatch, obstacle):
    if obstacle == "a file in its place":
        (tmp_path / "convs2s_jax").write_text("")
    elif obstacle == "a folder that others can write":
        (tmp_path / "convs2s_jax").mkdir()
        (tmp_path / "convs2s_jax").chmod(0o777)
    elif obstacle == "a full disk":
        usage = shutil.disk_usage(tmp_path)._replace(free=compiled_programs.FREE - 1)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    else:
        monkeypatch.setattr(os, "access", lambda *_: False)  # root could write everywhere
    assert compiled_programs.keep({"XDG_CACHE_HOME": str(tmp_path)}) is None
    assert jax.config.jax_compilation_cache_dir is None


def test_processors_with_other_instructions_have_other_folders(tmp_path):
    found = []
    for mhz, flag in ((2000, "avx2"), (3000, "avx2"), (2000, "avx512f")):
        (tmp_path / "cpuinfo").write_text(X86.format(mhz=mhz, flag=flag))
        found.append(compiled_programs.processor(tmp_path / "cpuinfo"))
    assert found[0] == found[1] != found[2]


def test_the_programs_used_longest_ago_are_deleted_first(tmp_path):
    for age, name in enumerate(["a/new", "b/used", "a/old", "b/oldest"]):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
        written = 10_000 - age if name != "b/used" else 10
        os.utime(path, (10_000 - age, written))  # one was written first and read lately
    compiled_programs.shrink(tmp_path, 400)
    assert len(list(tmp_path.rglob("*"))) == 2 + 4
    compiled_programs.shrink(tmp_path, 399)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"new", "used"}
