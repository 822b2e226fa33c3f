"""What to import or export: the flags of `convs2s import` and `convs2s export`, and their validation."""

from dataclasses import dataclass
from typing import Literal

from convs2s_jax.core.config import check


def _check_given(order: object, what: str, *names: str) -> None:
    """Raise UserError if one of these flags is missing."""
    wanted = " and ".join(f"--{name}" for name in names)
    for name in names:
        check(getattr(order, name) != "", f"--{name} is missing: {what} needs {wanted}")


@dataclass(frozen=True, kw_only=True)
class FairseqImport:
    """Flags of the import command.

    Attributes:
      checkpoint: fairseq .pt file.
      dicts: folder that contains dict.SRC.txt and dict.TGT.txt.
      workdir: new folder.
      source_lang: SRC; by default the checkpoint's own.
      target_lang: TGT; by default the checkpoint's own.
      src_spm: SentencePiece model of the source, for text that is not yet split into pieces.
      tgt_spm: SentencePiece model of the target.
      bpe_codes: subword-nmt codes, one file for both sides or SRC,TGT, for text that is not yet split into pieces.
      momentum: carry over the optimiser's momentum.
    """

    checkpoint: str = ""
    dicts: str = ""
    workdir: str = ""
    source_lang: str = ""
    target_lang: str = ""
    src_spm: str = ""
    tgt_spm: str = ""
    bpe_codes: tuple[str, ...] = ()
    momentum: bool = True

    def __post_init__(self) -> None:
        """Raise UserError for invalid flags."""
        _check_given(self, "import", "checkpoint", "dicts", "workdir")
        check(
            bool(self.src_spm) == bool(self.tgt_spm),
            "--src_spm and --tgt_spm go together; set both or neither",
        )
        check(
            len(self.bpe_codes) <= 2,
            f"--bpe_codes lists {len(self.bpe_codes)} files; specify one for both sides, or two as SRC,TGT",
        )
        check(
            not (self.bpe_codes and self.src_spm),
            "--bpe_codes and --src_spm both split text into pieces; use the one that the model was trained with",
        )


@dataclass(frozen=True, kw_only=True)
class FairseqExport:
    """Flags of the export command.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      output: .pt file to write; the dictionaries are written next to it.
      step: step of the checkpoint; by default the best on validation.
      source_lang: language in the name of the source dictionary; by default the run's own.
      target_lang: language in the name of the target dictionary; by default the run's own.
      momentum: carry over the optimiser's momentum.
    """

    workdir: str = ""
    output: str = ""
    step: int | None = None
    source_lang: str = ""
    target_lang: str = ""
    momentum: bool = True

    def __post_init__(self) -> None:
        """Raise UserError for invalid flags."""
        _check_given(self, "export", "workdir", "output")


@dataclass(frozen=True, kw_only=True)
class ProgramExport:
    """The flags for exporting programs.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      output: folder to create; FILE.pt for a fairseq checkpoint.
      checkpoint: steps of checkpoints, or last:N for the last N; the kernels of several checkpoints are averaged.
        Default: the best checkpoint on validation.
      platforms: platforms that the programs run on.
      max_tokens: maximum number of source tokens per line, including the end symbol, rounded up to the width of a
        program.
    """

    workdir: str = ""
    output: str = ""
    checkpoint: tuple[str, ...] = ()
    platforms: tuple[Literal["cpu", "cuda", "rocm", "tpu"], ...] = ("cpu", "cuda", "tpu")
    max_tokens: int = 256

    def __post_init__(self) -> None:
        """Raise UserError for invalid flags."""
        _check_given(self, "export", "workdir", "output")
        check(len(self.platforms) > 0, "--platforms is empty: use one or more, as in --platforms=cpu,cuda")
        check(self.max_tokens >= 2, f"--max_tokens is {self.max_tokens}: use 2 or more")
