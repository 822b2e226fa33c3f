"""Whether a model can satisfy a request: required words, translations to score, beams, and lines that are too long."""

from collections.abc import Iterator, Sequence

import numpy as np

from convs2s_jax.core.errors import UserError, counted
from convs2s_jax.core.tokens import UNK
from convs2s_jax.data.symbols import Vocabulary
from convs2s_jax.data.text_files import name_of
from convs2s_jax.search.batching import max_output_length
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.memory import check_beam
from convs2s_jax.translation.lines import encode, encode_phrases
from convs2s_jax.translation.loaded import LoadedModel

_PIECE = 4096  # lines to encode at once


def left_out(where: str, cut: int, *, room: str = "the model's positions") -> str:
    """Return the message about a line of whose tokens the last `cut` were left out."""
    return f"{where}: too long for {room}; left out at its end: {counted(cut, 'token')}"


def check_fit(
    translator: LoadedModel,
    search: SearchConfig,
    lines: Sequence[str],
    *,
    prefix: tuple[str, Sequence[str]] | None = None,
    constraints: tuple[str, Sequence[Sequence[str]]] | None = None,
) -> None:
    """Reject prefixes and constraints that no translation can satisfy.

    Args:
      translator: the model.
      search: search options, for the length bounds.
      lines: source lines.
      prefix: (file name, one prefix per line).
      constraints: (file name, phrases per line).

    Raises:
      UserError: a word is not in the target vocabulary, there are more tokens than the translation may have, or the
        source line is empty. The message contains the file and the line.
    """
    if prefix is None and constraints is None:
        return
    vocabularies, models = translator.vocabularies, translator.members
    lengths = list(_lengths(vocabularies.src, lines))
    used = [0] * len(lines)
    prefixes = (prefix[0], [[text] for text in prefix[1]]) if prefix else ("", [])
    for (path, wanted), spelt in ((prefixes, encode), (constraints or ("", []), encode_phrases)):
        for i, texts in enumerate(wanted):
            where = f"{name_of(path)}, line {i + 1}"
            found = zip(texts, spelt(vocabularies.tgt, texts), strict=True)
            count = sum(_count_known(vocabularies.tgt, text, ids, where) for text, ids in found)
            if not count:
                continue
            if not lengths[i] and translator.reads_source:
                raise UserError(
                    f"{where}: the source line is empty, so its translation is empty too; leave this line empty"
                )
            used[i] += count
            room = max_output_length(models, search, min(lengths[i] + 1, translator.max_source))
            if used[i] > room:
                more = ", including those of its prefix" if used[i] > count else ""
                raise UserError(
                    f"{where}: {used[i]} tokens are required{more}, but a translation of this line has at most {room} "
                    "(max_length_a * source + max_length_b, and the model's positions); require fewer"
                )


def check_targets(translator: LoadedModel, path: str, targets: Sequence[str]) -> None:
    """Reject translations to score that are longer than the model's positions.

    Raises:
      UserError: a translation is too long. The message contains the file and the line.
    """
    room = translator.max_target - 1
    for number, length in enumerate(_lengths(translator.vocabularies.tgt, targets), 1):
        if length > room:
            raise UserError(
                f"{name_of(path)}, line {number}: the translation has {length} tokens, but the model has positions for "
                f"only {room}; shorten it"
            )


def check_memory(translator: LoadedModel, search: SearchConfig, rows: int) -> None:
    """Reject a beam that does not fit into memory.

    Args:
      translator: the model.
      search: search options.
      rows: sentences in a batch.

    Raises:
      UserError: the beam does not fit; the message states the largest that does.
    """
    check_beam(
        translator.member_params, translator.members, search, vocab_size=translator.vocabularies.tgt.size, rows=rows
    )


def _lengths(vocabulary: Vocabulary, texts: Sequence[str]) -> Iterator[int]:
    """Yield the number of tokens of each text, in order, without keeping the token ids of a large file in memory."""
    for first in range(0, len(texts), _PIECE):
        yield from map(len, vocabulary.encode(texts[first : first + _PIECE]))


def _count_known(vocabulary: Vocabulary, text: str, ids: np.ndarray, where: str) -> int:
    """Return the number of tokens of a text with these ids. Raises UserError if one is unknown."""
    if UNK in ids:
        words = [word for word in text.split() if UNK in vocabulary.encode([word])[0]]
        raise UserError(
            f"{where}: '{words[0] if words else text}' is not in the target vocabulary, so no translation can contain "
            "it; use other words"
        )
    return len(ids)
