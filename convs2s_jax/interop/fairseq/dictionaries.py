"""Convert between vocabularies and fairseq's dictionaries, with SentencePiece models or BPE codes beside them."""

from collections.abc import Sequence
from pathlib import Path

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import read_bytes
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.data import pieces, symbols
from convs2s_jax.data.bpe_codes import CodedWords, Codes, coded, is_marked
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
            words = coded(Codes.load(Path(merges[0])), words, Path(merges[0]))
        sides.append(words)
    return Vocabularies(*sides)


def is_name(name: str) -> bool:
    """Whether a file has a name that `read` may ask for: dict.LANGUAGE.txt."""
    return name.startswith("dict.") and name.endswith(".txt") and "/" not in name


def needs_external_bpe(vocabularies: Vocabularies) -> bool:
    """Whether the user has to split input with subword-nmt and join the output."""
    return is_marked(vocabularies.src) or is_marked(vocabularies.tgt)


def check_sizes(vocabularies: Vocabularies, rows: tuple[int, int], folder: Path, languages: Sequence[str]) -> None:
    """Raise UserError unless each vocabulary has as many entries as its embedding table has rows (source, target)."""
    sides = zip(("encoder", "decoder"), (vocabularies.src, vocabularies.tgt), rows, languages, strict=True)
    odd = [
        f"{folder / f'dict.{language}.txt'} has {vocabulary.size - len(SPECIAL)} entries and {len(SPECIAL)} special "
        f"symbols ({vocabulary.size} in total), but {side}.embed_tokens.weight has {count} rows"
        for side, vocabulary, count, language in sides
        if vocabulary.size != count
    ]
    if odd:
        raise UserError("; ".join(odd) + "; use the dictionaries that the model was trained with")


def joined(vocabularies: Vocabularies) -> Vocabularies | None:
    """One vocabulary for both sides of a model with shared tables, or None if the two differ."""
    same = vocabularies.src.fingerprint == vocabularies.tgt.fingerprint
    return Vocabularies(vocabularies.src, vocabularies.src) if same else None


def split_entries(vocabulary: Vocabulary) -> list[str]:
    """Return the entries that fairseq never finds in a text: it splits text at all white space, such as U+00A0."""
    return [entry for entry in vocabulary.symbols if any(map(str.isspace, entry))]


def write(vocabulary: Vocabulary, folder: Path, language: str) -> None:
    """Write dict.LANGUAGE.txt, and spm.LANGUAGE.model or codes.LANGUAGE if there is one, to a folder.

    Ids are preserved. The entry on line i, from 0, has id i + 4. SentencePiece entries have no counts; 1 is written.

    Raises:
      UserError: fairseq's file format cannot represent an entry.
    """
    for i, word in enumerate(vocabulary.symbols, len(SPECIAL)):
        if not word or any(char in word for char in " \n\r"):
            raise UserError(
                f"the {language} vocabulary has the entry {word!r} (id {i}), which fairseq's dictionaries cannot store"
            )
    symbols.word_list(vocabulary.symbols, vocabulary.counts or None).save(folder / f"dict.{language}.txt")
    segmenter = vocabulary.segmenter
    if isinstance(segmenter, pieces.ListedPieces):
        (folder / f"spm.{language}.model").write_bytes(segmenter.model)
    if isinstance(segmenter, CodedWords):
        (folder / f"codes.{language}").write_bytes(segmenter.codes.content())
