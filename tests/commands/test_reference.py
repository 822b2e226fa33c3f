"""docs/configuration.md and docs/commands.md: every field and every flag, and they are of this source."""

from convs2s_jax.commands import reference, train
from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import usage
from convs2s_jax.core.fields import fields_of
from tests import tiny

RENEW = "a field or a flag has changed; renew the pages: python -m convs2s_jax.commands.reference docs"


def test_the_pages_are_of_this_source():
    assert (tiny.ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == reference.text(brief=True), RENEW
    assert (tiny.ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == reference.commands_text(), RENEW


def test_every_field_has_a_description():
    missing = [(cls, field.name) for cls in reference.sections() for field in fields_of(cls) if not field.text]
    assert [name for _, name in missing if name != "kind"] == [], "describe these in the Attributes: of their class"


def test_help_of_training_leads_to_the_fields():
    text = command_line.help_text(train.COMMAND, "train.py")
    assert "--config.model.dropout=0.3" in text
    assert "--help=config" in text
    assert command_line.help_text(train.COMMAND, "train.py", "config") == reference.text()


def test_every_command_has_a_section_and_every_flag_a_description():
    page = reference.commands_text()
    for name, entry in COMMANDS.items():
        assert f"## convs2s {name}\n" in page
        fields = [field for group in entry.command.groups for field in group.fields]
        assert [f"{name} {field.name}" for field in fields if not field.text or f"`{usage(field)}`" not in page] == []
