"""`convs2s import`: import fairseq checkpoints."""

import functools
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.shared import check_languages, tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.guard import ended_by_signals

ABOUT = """
Import fairseq checkpoints:

  {program} --checkpoint=FILE.pt --dicts=DIR --workdir=DIR [--config.path.to.field=value ...]

Each checkpoint becomes a workdir for decoding and further training (docs/fairseq.md).
"""


@dataclass(frozen=True, kw_only=True)
class ImportFlags:
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
        for name in ("checkpoint", "dicts", "workdir"):
            check(bool(getattr(self, name)), f"--{name} is missing: import needs --checkpoint, --dicts and --workdir")
        check_languages(self.source_lang, self.target_lang)
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


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Convert checkpoints to workdirs."""
    given = command_line.options_of(ImportFlags, values)
    with ended_by_signals():
        from convs2s_jax.interop.fairseq.importing import Import, import_checkpoints

    order = Import(
        checkpoints=given.checkpoint,
        workdirs=given.workdir,
        dicts=given.dicts,
        languages=(given.source_lang, given.target_lang),
        models=(given.src_spm, given.tgt_spm) if given.src_spm else (None, None),
        codes=(given.bpe_codes[0], given.bpe_codes[-1]) if given.bpe_codes else (None, None),
        average=given.average,
        momentum=given.momentum,
        config=given.config,
        overrides=overrides,
    )
    import_checkpoints(order, tell)


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", ImportFlags),),
    main=main,
    stores=("checkpoint", "dicts", "workdir", "src_spm", "tgt_spm", "bpe_codes", "config"),
)
console = functools.partial(command_line.run, COMMAND)
