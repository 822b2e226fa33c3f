"""Convert between vocabularies and fairseq's dictionaries, with SentencePiece models or BPE codes beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import read_bytes
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.data import pieces, symbols
from convs2s_jax.data.bpe_codes import CodedWords, coded, load_codes
from convs2s_jax.data.symbols import Vocabulary
from convs2s_jax.data.vocabulary import Vocabularies


def read(folder: Path, languages: Sequence[str], models: Sequence[str], codes: Sequence[str] = ()) -> Vocabularies:
    """Read the vocabularies of both sides from dict.SRC.txt and dict.TGT.txt.

    Args:
      folder: folder of the dictionaries.
      languages: SRC and TGT.
      models: a SentencePiece model for each side, or "" for text tokenised by spaces.
      codes: files of subword-nmt codes: none, one for both sides, or two.

    Raises:
      UserError: a file is missing or damaged, a model produces none of the dictionary's pieces, or codes produce few.
    """
    sides: list[Vocabulary] = []
    for language, model, merges in zip(languages, models, (codes[:1], codes[-1:]), strict=True):
        path = folder / f"dict.{language}.txt"
        if not path.is_file():
            raise UserError(
                f"{path} is missing; set --dicts to the folder with dict.{languages[0]}.txt and "
                f"dict.{languages[1]}.txt of the checkpoint, as written by fairseq-preprocess"
            )
        words = symbols.load_words(path)
        if model:
            words = pieces.listed(read_bytes(model, remedy="specify a SentencePiece model"), words, Path(model))
        elif merges:
            words = coded(load_codes(Path(merges[0])), words, Path(merges[0]))
        sides.append(words)
    return Vocabularies(*sides)


def languages(source: str, target: str, args: Mapping[str, Any]) -> tuple[str, str]:
    """The languages in the names of the dictionaries: those given, or those of fairseq's arguments.

    Raises:
      UserError: one is unknown or cannot be a part of a file name, or both are the same.
    """
    found = [str(given or args.get(f"{side}_lang") or "") for side, given in (("source", source), ("target", target))]
    for side, language in zip(("source", "target"), found, strict=True):
        check(language != "", f"--{side}_lang is missing: the checkpoint does not specify its languages")
        check(
            "/" not in language, f"--{side}_lang={language}: a language is part of a file name; use a code such as en"
        )
    check(
        found[0] != found[1],
        f"both sides are named '{found[0]}': their dictionaries would have the same name; set --source_lang and "
        "--target_lang",
    )
    return found[0], found[1]


def check_sizes(vocabularies: Vocabularies, rows: tuple[int, int]) -> None:
    """Raise UserError unless each vocabulary has as many entries as its embedding table has rows (source, target)."""
    for side, vocabulary, count in zip(("source", "target"), (vocabularies.src, vocabularies.tgt), rows, strict=True):
        check(
            vocabulary.size == count,
            f"the {side} dictionary has {vocabulary.size - len(SPECIAL)} entries and {len(SPECIAL)} special symbols "
            f"({vocabulary.size} in total), but the model's table has {count} rows; use the dictionaries that the "
            "model was trained with",
        )


def write(vocabulary: Vocabulary, folder: Path, language: str) -> None:
    """Write dict.LANGUAGE.txt, and spm.LANGUAGE.model or codes.LANGUAGE if there is one, to a folder.

    Ids are preserved. The entry on line i, from 0, has id i + 4. SentencePiece entries have no counts; 1 is written.
    """
    symbols.word_list(vocabulary.symbols, vocabulary.counts or None).save(folder / f"dict.{language}.txt")
    segmenter = vocabulary.segmenter
    if isinstance(segmenter, pieces.ListedPieces):
        (folder / f"spm.{language}.model").write_bytes(segmenter.model)
    if isinstance(segmenter, CodedWords):
        (folder / f"codes.{language}").write_bytes(segmenter.codes())
