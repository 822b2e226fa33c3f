"""Shortlist files: learned from the training text of a run, read for decoding.

A file is one of numpy (npz): the arrays of `search.shortlist.Shortlist`, and the fingerprints of both vocabularies.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from convs2s_jax.core import checksums, files
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.data import lexicon, parallel_text, vocabulary
from convs2s_jax.data.tokens_on_disk import TokenizedText
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.rules import SPECIAL
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.translation import trained

NAME = "shortlist"
"""Name of the file in a workdir."""
ANEW = "create one with: convs2s shortlist --workdir=DIR"
_ARRAYS = ("always", "words", "offsets")
_PIECE = 1 << 20  # tokens to count at once, because `bincount` converts them to int64


def make(
    workdir: Path,
    *,
    words: int,
    frequent: int,
    iterations: int,
    pairs: int,
    tell: Tell,
    places: trained.Places = (),
) -> tuple[Shortlist, Vocabularies]:
    """Learn the shortlist of a run from its training text. Return it with the vocabularies that it belongs to.

    Args:
      workdir: workdir of the run.
      words, frequent, iterations: as in `learn`.
      pairs: maximum number of sentence pairs to learn from; of a larger corpus, only every n-th pair is used.
      tell, places: as in `trained.read_split`.

    Raises:
      UserError: there is no run, it has no translation model, or its training text cannot be read or has changed.
    """
    cfg = run_folder.load_config(workdir)
    check(
        isinstance(cfg.model, ModelConfig) and cfg.model.reads_source,
        f"--workdir={workdir} does not contain a translation model, and a shortlist lists likely target words of "
        "source words; use the workdir of a translation model",
    )
    vocabularies = vocabulary.load(run_folder.vocabulary(workdir))
    known, remedy = position_file.known_splits(workdir), "use a run that was trained on them"
    cfg = trained.located_corpus(cfg, "train", str(workdir), places, remedy="use another run")
    text = parallel_text.read(cfg.data, "train")
    split = trained.tokenized_training(cfg, workdir, vocabularies, text, known.get("train"), tell=tell, remedy=remedy)
    src, tgt = split.src, split.tgt
    del text, split  # the lines, which may fill the memory of the host
    rows = np.arange(0, len(src), -(-len(src) // pairs))
    tell(f"learning the likely words from {len(rows)} sentence pairs")
    return learn(src, tgt, rows, vocabularies, words=words, frequent=frequent, iterations=iterations), vocabularies


def learn(
    src: TokenizedText,
    tgt: TokenizedText,
    rows: np.ndarray,
    vocabularies: Vocabularies,
    *,
    words: int,
    frequent: int,
    iterations: int,
) -> Shortlist:
    """Learn a shortlist from parallel sentences: for each source word, the most probable target words by IBM model 1.

    A word in both vocabularies, such as a name or a number, is a likely translation of itself.

    Args:
      src, tgt: token ids of both sides.
      rows: indices of the sentence pairs to learn from.
      vocabularies: vocabularies of both sides.
      words: number of likely target words per source word.
      frequent: number of most frequent target words, which every sentence may use.
      iterations: number of iterations of expectation maximisation.
    """
    S, V = vocabularies.src.size, vocabularies.tgt.size
    found = lexicon.learn(src, tgt, rows, target_size=V, iterations=iterations)
    likely, offsets = lexicon.likely(found, source_size=S, target_size=V, count=words)
    ids = {vocabularies.tgt.token(t): t for t in range(SPECIAL, V)}
    same = np.asarray(
        [s * V + ids[token] for s in range(SPECIAL, S) if (token := vocabularies.src.token(s)) in ids], np.int64
    )
    keys = np.union1d(np.repeat(np.arange(S), np.diff(offsets)) * V + likely, same)
    counts = np.zeros(V, np.int64)
    for first in range(0, len(tgt.tokens), _PIECE):
        counts += np.bincount(tgt.tokens[first : first + _PIECE], minlength=V)
    counts[:SPECIAL] = 0
    return Shortlist(
        always=np.sort(np.argsort(-counts, kind="stable")[:frequent]).astype(np.int32),
        words=(keys % V).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(keys // V, minlength=S))]).astype(np.int32),
        size=V,
    )


def save(shortlist: Shortlist, vocabularies: Vocabularies, path: Path) -> None:
    """Write the file atomically. Raises UserError if it cannot be written."""
    arrays = {name: getattr(shortlist, name).astype("<i4") for name in _ARRAYS}
    data = io.BytesIO()
    np.savez(data, size=shortlist.size, vocabularies=json.dumps(run_folder.fingerprints(vocabularies)), **arrays)
    with files.writing(path, "choose another --output"):
        files.replace_file(path, data.getvalue())


def load(path: Path, vocabularies: Vocabularies) -> Shortlist:
    """Read the shortlist file for a model with these vocabularies.

    Raises:
      UserError: it cannot be read, is damaged, or was created for other vocabularies.
    """
    data = files.read_bytes(path, remedy=ANEW)
    try:
        with NpzFile(io.BytesIO(data)) as content:  # which compares checksums
            found: dict[str, Any] = {name: content[name] for name in (*_ARRAYS, "size", "vocabularies")}
        found["size"], made_for = int(found["size"]), checksums.parsed(str(found.pop("vocabularies")))
    except (ValueError, TypeError, KeyError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"--shortlist={path} is not a shortlist, or is damaged; {ANEW}") from error
    if made_for != run_folder.fingerprints(vocabularies):
        raise UserError(f"--shortlist={path} was created for vocabularies other than the model's; {ANEW} of this model")
    return Shortlist(**found)
