"""docs/configuration.md: every field of the configuration, and it is of this source."""

from convs2s_jax.commands import reference, train
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
