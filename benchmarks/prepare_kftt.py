"""Prepare KFTT as in its published baselines:  python benchmarks/prepare_kftt.py --kftt=DIR --output=FOLDER

DIR is a folder with train, valid and test of ja and en of the Kyoto Free Translation Task, raw, plain or gzipped.
English is tokenised with Moses (requires `pip install sacremoses`), as in kftt-data-1.0/data/tok, and stays cased. We
could not find out whether published scores are cased. The baselines segment Japanese with KyTea. Here it is not
segmented, because sub-words are learned from unsegmented text, but its characters are normalised (NFKC). Published
baselines train on train.cln, in which both sides have 1 to 40 words: 329,882 pairs. Here English has 1 to 40 words and
Japanese 1 to 57 characters: 331,948 pairs.
FOLDER gets train, valid and test, gzipped; valid and test keep all lines.
"""

import argparse
import gzip
import sys
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

WORDS = 40
CHARACTERS = 57
SPLITS = ("train", "valid", "test")


def main() -> None:
    """Write the files and print the number of pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kftt", required=True, type=Path, help="folder with the raw text")
    parser.add_argument("--output", required=True, type=Path, help="folder for the prepared text")
    arguments = parser.parse_args()
    try:
        from sacremoses import MosesTokenizer
    except ImportError:
        sys.exit("benchmarks/prepare_kftt.py needs sacremoses to tokenise English: pip install sacremoses")
    tokenize = MosesTokenizer("en").tokenize
    prepare(arguments.kftt, arguments.output, lambda text: tokenize(text, return_str=True, escape=False))


def prepare(raw: Path, output: Path, tokenize: Callable[[str], str]) -> None:
    """Write the splits. `tokenize` inserts spaces between English tokens."""
    output.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        sides = zip(lines(raw, split, "ja"), lines(raw, split, "en"), strict=True)
        pairs = [(japanese(ja), tokenize(en)) for ja, en in sides]
        kept = [pair for pair in pairs if split != "train" or short(*pair)]
        for side, texts in zip(("ja", "en"), zip(*kept, strict=True), strict=True):
            write(output / f"{split}.{side}.gz", texts)
        print(f"{split}: {len(kept)} of {len(pairs)} pairs", flush=True)


def lines(folder: Path, split: str, side: str) -> list[str]:
    """Read the lines of a file, plain or gzipped."""
    plain, packed = folder / f"{split}.{side}", folder / f"{split}.{side}.gz"
    with plain.open(encoding="utf-8") if plain.exists() else gzip.open(packed, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def japanese(text: str) -> str:
    """Normalise characters, and replace white space by single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def short(ja: str, en: str) -> bool:
    """Whether a training pair is kept."""
    return 1 <= len(en.split()) <= WORDS and 1 <= len(ja.replace(" ", "")) <= CHARACTERS


def write(path: Path, texts: Iterable[str]) -> None:
    """Write gzipped lines. Equal text gives equal bytes."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.writelines(f"{text}\n".encode() for text in texts)


if __name__ == "__main__":
    main()
