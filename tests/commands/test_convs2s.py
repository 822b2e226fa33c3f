"""The command that starts all others."""

from types import SimpleNamespace

import pytest

from convs2s_jax.commands import convs2s


def test_an_interrupt_while_a_command_is_imported_ends_quietly(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(convs2s, "importlib", SimpleNamespace(import_module=interrupted))
    monkeypatch.setattr("sys.argv", ["convs2s", "train", "--config=a"])
    with pytest.raises(SystemExit) as left:
        convs2s.console()
    assert left.value.code == 130
    assert capsys.readouterr() == ("", "")
