"""The languages of a run whose vocabularies another run uses: reversed or different ones would go unnoticed."""

from contextlib import suppress
from pathlib import Path

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.data.config import DataConfig
from convs2s_jax.training.run import run_folder


def of_vocabularies(folder: str) -> DataConfig | None:
    """Return the corpus of the run that owns these vocabularies; None without a config.json next to their folder."""
    if scheme_of(folder):
        return None
    with suppress(UserError):
        return run_folder.load_config(Path(folder).absolute().parent).data
    return None


def compare(there: DataConfig, here: DataConfig, given: str, *, joint: bool, tell: Tell) -> None:
    """Check that the sides of another run are not reversed; report different names.

    Args:
      there: corpus of the other run.
      here: corpus of this run.
      given: field and value that specify the other run, for messages.
      joint: whether one vocabulary serves both sides.
      tell: called with a sentence for the user.

    Raises:
      UserError: they are reversed, and each side has its own vocabulary.
    """
    pairs = [(there.src, here.src), (there.tgt, here.tgt)]
    odd = [f"'{a}' there and '{b}' here" for a, b in pairs if a and b and a != b]
    is_reversed = len(odd) == 2 and (there.src, there.tgt) == (here.tgt, here.src)
    check(
        joint or not is_reversed,
        f"{given} belongs to a run from '{there.src}' to '{there.tgt}', but this one is from '{here.src}' to "
        f"'{here.tgt}': each side would use the vocabulary of the other; swap data.src and data.tgt, or leave the "
        "field out",
    )
    if odd and not (joint and is_reversed and given.startswith("data.")):
        tell(f"{given}: that run names its sides differently, {' and '.join(odd)}")
