"""Data sets of Hugging Face's library `datasets`, from its hub or a local folder, as parallel text."""

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from convs2s_jax.core.network import unreachable
from convs2s_jax.core.packages import check_installed
from convs2s_jax.data import tables

SPLITS = {"train": ("train",), "valid": ("validation", "valid"), "test": ("test",)}
"""Names of our splits in data sets."""
_REMEDY = "check its name and the network, or set data.corpus to hf:FOLDER with a copy of it"


def read(
    name: str, split: str, names: Sequence[str], *, skip: bool = False
) -> tuple[Iterator[tables.Pair], tuple[str, ...]] | None:
    """Return two text features of the examples of a data set, read one after another, and all files of a local one.

    Args:
      name: "NAME" or "NAME:CONFIG" of the hub, or a folder that `save_to_disk` wrote or `load_dataset` reads.
      split: "train", "valid" (or the data set's "validation") or "test".
      names: of the features, and `skip`, as in `tables.pairs`.

    Returns:
      None without this split.

    Raises:
      UserError: it cannot be reached or read, or a feature is missing or no text.
    """
    check_installed("a data set of Hugging Face", ["datasets"], "formats")
    where, folder = f"data.corpus 'hf:{name}'", os.path.expanduser(name.partition(":")[0])
    with tables.readable(where, _REMEDY):
        splits = _opened(name)
    there = next((one for one in SPLITS[split] if one in splits), None)
    if there is None:
        return None
    files = sorted(os.path.join(at, file) for at, _, found in os.walk(folder) for file in found)
    return tables.checked(_rows(splits[there]), names, where, _REMEDY, skip=skip), tuple(files)


def _rows(data: Any) -> Iterator[Any]:
    for block in data.iter(batch_size=tables.BLOCK):
        yield from (dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True))


@functools.lru_cache(maxsize=1)  # one start asks for each split, some of them twice
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
