"""The languages of a run whose vocabularies another run takes: reversed or other ones would go unnoticed."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.data.config import DataConfig
from convs2s_jax.training.run import run_folder


def of_vocabularies(folder: str) -> DataConfig | None:
    """The corpus of the run that vocabularies are of; None where no run's configuration lies beside their folder."""
    if scheme_of(folder):
        return None
    with suppress(UserError):
        return run_folder.load_config(Path(folder).absolute().parent).data
    return None


def compare(there: DataConfig, here: DataConfig, given: str, *, joint: bool, tell: Callable[[str], None]) -> None:
    """Refuse the two sides of another run in reverse; tell of other names.

    Args:
      there: corpus of the other run.
      here: corpus of this run.
      given: field and value that name the other run, for messages.
      joint: whether one vocabulary serves both sides.
      tell: gets a sentence for the user.

    Raises:
      UserError: they are reversed, and each side has a vocabulary of its own.
    """
    pairs = [(there.src, here.src), (there.tgt, here.tgt)]
    odd = [f"'{a}' there and '{b}' here" for a, b in pairs if a and b and a != b]
    is_reversed = len(odd) == 2 and (there.src, there.tgt) == (here.tgt, here.src)
    check(
        joint or not is_reversed,
        f"{given} is of a run from '{there.src}' to '{there.tgt}', and this one is from '{here.src}' to '{here.tgt}': "
        "the vocabularies would be those of the other sides; exchange data.src and data.tgt, or leave the field out",
    )
    if odd and not (joint and is_reversed and given.startswith("data.")):
        tell(f"{given}: the sides of that run have other names, {' and '.join(odd)}")
