"""Data sets of Hugging Face's library `datasets`, from its hub or a local folder, as parallel text."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.core.network import unreachable
from convs2s_jax.core.packages import check_installed
from convs2s_jax.data import tables

SPLITS = {"train": ("train",), "valid": ("validation", "valid"), "test": ("test",)}
"""Names of our splits in data sets."""


def pairs(name: str, split: str, names: Sequence[str], *, skip: bool = False) -> Iterator[tables.Pair] | None:
    """Return two text features of the examples of a data set, read one after another, or None without such a split.

    Args:
      name: "NAME" or "NAME:CONFIG" of the hub, or a folder that `save_to_disk` wrote or `load_dataset` reads.
      split: "train", "valid" (or the data set's "validation") or "test".
      names: of the features, and `skip`, as in `tables.pairs`.

    Raises:
      UserError: it cannot be reached or read, or a feature is missing or no text.
    """
    check_installed("a data set of Hugging Face", ["datasets"], "formats")

    def rows(data: Any) -> Iterator[Any]:
        try:
            for block in data.iter(batch_size=tables.BLOCK):
                yield from (dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True))
        except Exception as error:
            raise _unreadable(name, error) from error

    try:
        splits = _opened(name)
    except Exception as error:  # parsers and downloads can raise anything
        raise _unreadable(name, error) from error
    there = next((one for one in SPLITS[split] if one in splits), "")
    return tables.checked(rows(splits[there]), names, f"data.corpus 'hf:{name}'", skip=skip) if there else None


def files(name: str) -> tuple[str, ...]:
    """Return all files of a local data set; () for one of the hub."""
    folder = os.path.expanduser(name.partition(":")[0])
    return tuple(sorted(os.path.join(at, file) for at, _, found in os.walk(folder) for file in found))


def _opened(name: str) -> Any:
    """Return the splits of a data set, by name."""
    import datasets
    from huggingface_hub import constants

    place, _, config = os.path.expanduser(name).partition(":")
    if any(os.path.exists(os.path.join(place, file)) for file in ("dataset_dict.json", "state.json")):
        saved = datasets.load_from_disk(place)
        return saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    offline = os.path.isdir(place) or constants.HF_HUB_OFFLINE
    if why := not offline and unreachable([constants.ENDPOINT]):
        raise ConnectionError(f"{constants.ENDPOINT} does not answer: {why}")
    return datasets.load_dataset(place, config or None, streaming=True)


def _unreadable(name: str, error: Exception) -> UserError:
    rest = "check its name and the network, or set data.corpus to hf:FOLDER with a copy of it"
    return UserError(f"data.corpus 'hf:{name}' cannot be read ({first_line(error)}): {rest}")
