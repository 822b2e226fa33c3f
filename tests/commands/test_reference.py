"""docs/configuration.md and docs/commands.md: every field and every flag, and they are of this source."""

from convs2s_jax.commands import command_reference, convs2s, reference, train
from convs2s_jax.core import command_line
from tests import tiny

PAGE = tiny.ROOT / "docs" / "configuration.md"


def test_the_page_is_of_this_source():
    renew = "python -m convs2s_jax.commands.reference > docs/configuration.md"
    assert PAGE.read_text(encoding="utf-8") == reference.text(), f"a field has changed; renew the page: {renew}"


def test_every_field_has_a_description():
    assert reference.undescribed() == [], "describe these fields in the Attributes: section of their class"


def test_help_of_training_leads_to_the_fields():
    text = command_line.help_text(train.COMMAND, "train.py")
    assert "--config.model.dropout=0.3" in text
    assert "--help=config" in text
    assert command_line.help_text(train.COMMAND, "train.py", "config") == reference.text()


def test_the_page_of_commands_is_of_this_source():
    page = tiny.ROOT / "docs" / "commands.md"
    renew = "python -m convs2s_jax.commands.command_reference > docs/commands.md"
    assert page.read_text(encoding="utf-8") == command_reference.text(), f"a flag has changed; renew the page: {renew}"


def test_every_command_has_a_section_and_every_flag_a_description():
    sections = [name for name, _, _ in command_reference.commands()]
    assert {name.split()[0] for name in sections} == set(convs2s.COMMANDS)
    groups = [(name, group) for name, _, command in command_reference.commands() for group in command.groups]
    assert [f"{name} {field.name}" for name, group in groups for field in group.fields if not field.text] == []
