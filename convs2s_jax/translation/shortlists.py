"""The file of a shortlist: made from the training text of a run, read by decoding.

A line of JSON with the fingerprints of both vocabularies, the lengths of the arrays and a checksum of what follows;
then the arrays of `search.shortlist.Shortlist` as little-endian int32.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from convs2s_jax.core import checksums, files
from convs2s_jax.core.checksums import DamagedError
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import lexicon, parallel_text, vocabulary
from convs2s_jax.data.lexicon import Sentences
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.rules import SPECIAL
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.inputs import dataset
from convs2s_jax.training.run.stores import store_copy
from convs2s_jax.translation import trained

NAME = "shortlist"
"""Name of the file in a workdir."""
VERSION = 1
ANEW = "make one with: convs2s shortlist --workdir=DIR"
_ARRAYS = ("always", "words", "offsets")
_PIECE = 1 << 20  # tokens that are counted at once: `bincount` makes int64 of them


def make(
    workdir: Path,
    *,
    words: int,
    frequent: int,
    iterations: int,
    pairs: int,
    tell: Callable[[str], None],
    places: trained.Places = (),
) -> tuple[Shortlist, Vocabularies]:
    """The shortlist of a run, learned from its training text, and the vocabularies that it belongs to.

    Args:
      workdir: of the run.
      words, frequent, iterations: as in `learn`.
      pairs: sentence pairs to learn from; of more than these every second, third and so on.
      tell: receives sentences for the user.
      places: where the corpus is now.

    Raises:
      UserError: there is no run, its model does not translate, or its training text cannot be read or has changed.
    """
    cfg = run_folder.load_config(workdir)
    check(
        isinstance(cfg.model, ModelConfig) and cfg.model.reads_source,
        f"--workdir={workdir} holds no model that translates: a shortlist has likely target words of source words; "
        "name the workdir of a translator",
    )
    vocabularies = vocabulary.load(run_folder.vocabulary(workdir))
    store_copy.refresh(workdir)
    known, way_out = position_file.known_splits(workdir), "name a run that was trained on them"
    cfg = trained.located_corpus(cfg, "train", str(workdir), places, way_out="name another run")
    text = parallel_text.read(cfg.data, "train", recognise=dataset.recogniser(known))
    split = trained.tokenized_training(cfg, workdir, vocabularies, text, known.get("train"), tell=tell, way_out=way_out)
    src, tgt = split.src, split.tgt
    del text, split  # the lines, which may fill the memory of the host
    rows = np.arange(0, len(src), -(-len(src) // pairs))
    tell(f"learning the likely words from {len(rows)} sentence pairs")
    return learn(src, tgt, rows, vocabularies, words=words, frequent=frequent, iterations=iterations), vocabularies


def learn(
    src: Sentences,
    tgt: Sentences,
    rows: np.ndarray,
    vocabularies: Vocabularies,
    *,
    words: int,
    frequent: int,
    iterations: int,
) -> Shortlist:
    """The shortlist of parallel sentences: of each source word the most probable target words under IBM model 1.

    A word that both vocabularies have, such as a name or a number, is a likely translation of itself.

    Args:
      src, tgt: token ids of both sides.
      rows: sentence pairs to learn from.
      vocabularies: of both sides.
      words: likely target words of each source word.
      frequent: most frequent target words, which every sentence may use.
      iterations: of expectation maximisation.
    """
    S, V = vocabularies.src.size, vocabularies.tgt.size
    found = lexicon.learn(src, tgt, rows, target_size=V, iterations=iterations)
    likely, offsets = lexicon.likely(found, source_size=S, target_size=V, count=words)
    ids = {vocabularies.tgt.token(t): t for t in range(SPECIAL, V)}
    same = np.asarray(
        [s * V + ids[token] for s in range(SPECIAL, S) if (token := vocabularies.src.token(s)) in ids], np.int64
    )
    keys = np.union1d(np.repeat(np.arange(S), np.diff(offsets)) * V + likely, same)
    counts = _counts(tgt.tokens, V)
    counts[:SPECIAL] = 0
    return Shortlist(
        always=np.sort(np.argsort(-counts, kind="stable")[:frequent]).astype(np.int32),
        words=(keys % V).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(keys // V, minlength=S))]).astype(np.int32),
        size=V,
    )


def _counts(tokens: np.ndarray, size: int) -> np.ndarray:
    """How often each of `size` ids occurs: int64 [size]."""
    counts = np.zeros(size, np.int64)
    for first in range(0, len(tokens), _PIECE):
        counts += np.bincount(tokens[first : first + _PIECE], minlength=size)
    return counts


def check_writable(path: Path) -> None:
    """Refuse a file that `save` could not write, before anything is learned. Nothing is changed.

    Raises:
      UserError: it is a folder, or no file can be made beside it.
    """
    try:
        files.check_replaceable(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def save(shortlist: Shortlist, vocabularies: Vocabularies, path: Path) -> None:
    """Write the file as a whole.

    Raises:
      UserError: it cannot be written.
    """
    arrays = [getattr(shortlist, name).astype("<i4").tobytes() for name in _ARRAYS]
    head = {
        "version": VERSION,
        "vocabularies": run_folder.fingerprints(vocabularies),
        "size": shortlist.size,
        "bytes": [len(data) for data in arrays],
        "content": checksums.checksum(*arrays),
    }
    try:
        files.replace_file(path, json.dumps(checksums.seal(head)).encode() + b"\n" + b"".join(arrays))
    except OSError as error:
        raise _unwritable(path, error) from error


def load(path: Path, vocabularies: Vocabularies) -> Shortlist:
    """Read the file of a shortlist for a model with these vocabularies.

    Raises:
      UserError: it cannot be read, is damaged, or was made for other vocabularies.
    """
    data = files.read_bytes(path, remedy=ANEW)
    first, _, rest = data.partition(b"\n")
    try:
        head = checksums.unseal(checksums.parsed(first))
        if head.get("version") != VERSION:
            raise UserError(f"--shortlist={path} was written by another version of this program; {ANEW}")
        if checksums.checksum(rest) != head["content"]:
            raise DamagedError("its checksum is that of another content")
    except DamagedError as error:
        raise UserError(f"--shortlist={path} is no shortlist, or is damaged ({error}); {ANEW}") from error
    if head["vocabularies"] != run_folder.fingerprints(vocabularies):
        raise UserError(
            f"--shortlist={path} was made for other vocabularies than those of the model; {ANEW}, the model's own"
        )
    ends = np.cumsum([0, *head["bytes"]])
    arrays = [np.frombuffer(rest[a:b], "<i4") for a, b in itertools.pairwise(ends)]
    return Shortlist(**dict(zip(_ARRAYS, arrays, strict=True)), size=head["size"])


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be written: {error.strerror}; make room or give another --output")
