"""Checks of what a translator is asked to do: lines of text, required words, options, beams."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.core.tokens import UNK
from convs2s_jax.data.symbols import Vocabulary
from convs2s_jax.data.text_files import name_of, without_end
from convs2s_jax.search.batching import max_output_length
from convs2s_jax.translation.lines import LoadedModel, TextRequest, encode, encode_phrases

_PIECE = 4096  # lines to encode at once
_SURROGATE = re.compile("[\ud800-\udfff]")  # "surrogateescape" stands for odd bytes with these


def texts_of(name: str, given: Iterable[str]) -> list[str]:
    r"""Return strings of one line each as a list, without \n, \r\n or \r at their ends, as when a file is read.

    Args:
      name: what each string is, for messages.
      given: any iterable of str.

    Raises:
      TypeError: `given` is a single string rather than a list, or an entry is not a str.
      ValueError: a string has more than one line, or half of a surrogate pair.
    """
    lines = []
    for number, text in enumerate(_listed(given), 1):
        if not isinstance(text, str):
            raise TypeError(f"{name} {number} is {shown(text)}: expected a str, which may be empty")
        lines.append(without_end(text))
        if "\n" in lines[-1]:
            raise ValueError(f"{name} {number} contains a line break: pass each line as a separate string")
        if _SURROGATE.search(text):
            raise ValueError(
                f"{name} {number} contains half of a surrogate pair, which is not a character: correct its encoding"
            )
    return lines


def phrases_of(given: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the phrases of each line as lists. Raises TypeError and ValueError as `texts_of` does."""
    return [texts_of(f"constraints {i}: phrase", one) for i, one in enumerate(_listed(given), 1)]


def check_required(
    translator: LoadedModel, request: TextRequest, *, names: tuple[str, str] = ("prefix", "constraints")
) -> None:
    """Reject prefixes and constraints that no translation can satisfy.

    Args:
      translator: the model.
      request: the lines, their prefixes and constraints, and the search with its length bounds.
      names: names of the prefixes and the constraints, such as their files.

    Raises:
      UserError: there is not one per line; a word is not in the target vocabulary, there are more tokens than the
        translation may have, or the source line is empty. The message contains the name and the line.
    """
    tgt, lines = translator.vocabularies.tgt, request.lines
    for name, given in zip(names, (request.prefix, request.constraints), strict=True):
        check(
            given is None or len(given) == len(lines),
            f"{name} has {len(given or ())} entries for {len(lines)} lines: pass one per line, which may be empty",
        )
    if request.prefix is None and request.constraints is None:
        return
    lengths = list(_lengths(translator.vocabularies.src, lines))
    used = [0] * len(lines)
    prefixes = [[text] for text in request.prefix or ()]
    for path, wanted, spelt in zip(names, (prefixes, request.constraints or ()), (encode, encode_phrases), strict=True):
        for i, texts in enumerate(wanted):
            where = f"{name_of(path)}, line {request.first + i + 1}"
            for text, ids in zip(texts, spelt(tgt, texts), strict=True):
                if UNK in ids:
                    words = [word for word in tgt.read(text).split() if UNK in tgt.encode([word])[0]]
                    raise UserError(
                        f"{where}: '{words[0] if words else text}' is not in the target vocabulary, so no translation "
                        "can contain it; use other words"
                    )
                used[i] += len(ids)
            if any(texts) and used[i] and not lengths[i] and translator.reads_source:
                raise UserError(
                    f"{where}: the source line is empty, so its translation is empty; leave this line empty"
                )
            room = max_output_length(translator.members, request.search, min(lengths[i] + 1, translator.max_source))
            if used[i] > room:
                raise UserError(
                    f"{where}: {used[i]} tokens are required in all, but a translation of this line has at "
                    f"most {room} (max_length_a * source + max_length_b, and the model's positions); require fewer"
                )


def check_targets(translator: LoadedModel, path: str, targets: Sequence[str], first: int = 0) -> None:
    """Raise UserError for a translation to score that is longer than the model's positions; it names file and line.

    `first` is the number of the first one, from 0.
    """
    room = translator.max_target - 1
    for number, length in enumerate(_lengths(translator.vocabularies.tgt, targets), first + 1):
        check(
            length <= room,
            f"{name_of(path)}, line {number}: the translation has {length} tokens, but the model has positions for "
            f"only {room}; shorten it",
        )


def _lengths(vocabulary: Vocabulary, texts: Sequence[str]) -> Iterator[int]:
    """Yield the number of tokens of each text, in order, without keeping the token ids of a large file in memory."""
    for first in range(0, len(texts), _PIECE):
        yield from map(len, vocabulary.encode(texts[first : first + _PIECE]))


def _listed(given: Iterable[Any]) -> list[Any]:
    """Convert an iterable to a list. Raises TypeError for a single string, which is iterable too, and other objects."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"expected a list of strings, got {shown(given)}: pass a list, which may be empty")
    return list(given)
