"""What to import or export: the flags of `convs2s import` and `convs2s export`, and their validation."""

from dataclasses import dataclass

from convs2s_jax.core.config import check

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def _check_languages(source: str, target: str) -> None:
    """Reject values of --source_lang and --target_lang that cannot be in the names of two dictionaries."""
    for name, language in (("source_lang", source), ("target_lang", target)):
        check("/" not in language, f"--{name}={language}: a language is part of a file name; use a code such as en")
    check(
        not source or source != target,
        f"--source_lang and --target_lang are both {source}: their dictionaries would have the same name; use two",
    )


@dataclass(frozen=True, kw_only=True)
class FairseqImport:
    """Flags of the import command.

    Attributes:
      checkpoint: fairseq .pt files, or .npz files with config.json next to them; or their addresses in an object store
        (gs://BUCKET/NAME, s3://BUCKET/NAME).
      dicts: folder that contains dict.SRC.txt and dict.TGT.txt, or its address.
      workdir: new folders, one for each checkpoint; or the address of a single workdir in an object store.
      source_lang: SRC; by default the checkpoint's own.
      target_lang: TGT; by default the checkpoint's own.
      src_spm: SentencePiece model of the source, or its address, for text that is not yet split into pieces.
      tgt_spm: SentencePiece model of the target, or its address.
      bpe_codes: subword-nmt codes, one file or address for both sides or SRC,TGT, for text that is not yet split into
        pieces.
      average: create one workdir with the average of all checkpoints.
      momentum: carry over the optimiser's momentum.
      config: configuration file, or its address, whose fields override those of the checkpoint.
    """

    checkpoint: tuple[str, ...] = ()
    dicts: str = ""
    workdir: tuple[str, ...] = ()
    source_lang: str = ""
    target_lang: str = ""
    src_spm: str = ""
    tgt_spm: str = ""
    bpe_codes: tuple[str, ...] = ()
    average: bool = False
    momentum: bool = True
    config: str = ""

    def __post_init__(self) -> None:
        """Raise UserError for invalid flags."""
        for name in ("checkpoint", "dicts", "workdir"):
            check(bool(getattr(self, name)), f"--{name} is missing: import needs --checkpoint, --dicts and --workdir")
        _check_languages(self.source_lang, self.target_lang)
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
        many, wanted = len(self.checkpoint), len(self.workdir)
        check(
            not self.average or (many >= 2 and wanted == 1),
            f"--average was given {many} checkpoints and {wanted} workdirs; it requires at least two checkpoints and "
            "one workdir",
        )
        check(
            self.average or many == wanted,
            f"--checkpoint lists {many} files and --workdir lists {wanted}; specify one workdir for each checkpoint, "
            "or use --average to create a single one",
        )


@dataclass(frozen=True, kw_only=True)
class FairseqExport:
    """Flags of the export command.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      output: .pt file to write, or its address; the dictionaries are written next to it.
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
        for name in ("workdir", "output"):
            check(getattr(self, name) != "", f"--{name} is missing: export needs --workdir and --output")
        _check_languages(self.source_lang, self.target_lang)


@dataclass(frozen=True, kw_only=True)
class ProgramExport:
    """The flags for exporting programs.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      output: folder to create, or its address.
      checkpoint: steps of checkpoints, or last:N for the last N; the kernels of several checkpoints are averaged.
        Default: the best checkpoint on validation.
      platforms: platforms that the programs run on, from cpu, cuda, rocm and tpu.
      max_tokens: maximum number of source tokens per line, including the end symbol, rounded up to the width of a
        program.
    """

    workdir: str = ""
    output: str = ""
    checkpoint: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")
    max_tokens: int = 256

    def __post_init__(self) -> None:
        """Raise UserError for invalid flags."""
        for name in ("workdir", "output"):
            check(getattr(self, name) != "", f"--{name} is missing: export needs --workdir and --output")
        odd = [name for name in self.platforms if name not in PLATFORMS]
        check(bool(self.platforms) and not odd, f"--platforms={','.join(odd)}: choose from {', '.join(PLATFORMS)}")
        check(self.max_tokens >= 2, f"--max_tokens is {self.max_tokens}: use 2 or more")
