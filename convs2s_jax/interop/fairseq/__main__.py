"""Bridge to fairseq:  python -m convs2s_jax.interop.fairseq import|export --flag=value ...

import --checkpoint=FILE.pt --dicts=DIR --workdir=DIR [--config=FILE] [--config.path.to.field=value ...]
export --workdir=DIR --output=FILE.pt
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from convs2s_jax.core.command_line import run
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.interop.fairseq.exporting import Export, export_checkpoint
from convs2s_jax.interop.fairseq.importing import Import, import_checkpoints

CHECKPOINT = flags.DEFINE_list("checkpoint", [], "import: .pt files of fairseq, or .npz with config.json beside it")
DICTS = flags.DEFINE_string("dicts", "", "import: folder of dict.SRC.txt and dict.TGT.txt")
WORKDIR = flags.DEFINE_list("workdir", [], "import: new folders, one for each checkpoint; export: the run's folder")
OUTPUT = flags.DEFINE_string("output", "", "export: .pt file to write; the dictionaries go beside it")
SOURCE_LANG = flags.DEFINE_string("source_lang", "", "SRC; without it, the checkpoint's or the run's own")
TARGET_LANG = flags.DEFINE_string("target_lang", "", "TGT; without it, the checkpoint's or the run's own")
SRC_SPM = flags.DEFINE_string("src_spm", "", "import: SentencePiece model of the source, for text that is not cut yet")
TGT_SPM = flags.DEFINE_string("tgt_spm", "", "import: SentencePiece model of the target")
AVERAGE = flags.DEFINE_bool("average", False, "import: one workdir with the mean of all checkpoints")
MOMENTUM = flags.DEFINE_bool("momentum", True, "carry the momentum over")
CONFIG = flags.DEFINE_string("config", "", "import: configuration file; its fields replace those of the checkpoint")
STEP = flags.DEFINE_integer("step", None, "export: step of the checkpoint; without it, the best on validation")

Flags = tuple[flags.FlagHolder, ...]
NEEDED: dict[str, Flags] = {"import": (CHECKPOINT, DICTS, WORKDIR), "export": (WORKDIR, OUTPUT)}
ONLY: dict[str, Flags] = {
    "import": (CHECKPOINT, DICTS, SRC_SPM, TGT_SPM, AVERAGE, CONFIG),
    "export": (OUTPUT, STEP),
}


def main(command: str, overrides: Sequence[tuple[str, str]]) -> None:
    """Import or export."""
    if command not in NEEDED:
        hint = did_you_mean(command, NEEDED) if command else f"; there are: {', '.join(NEEDED)}"
        raise UserError(f"the command is '{command}'{hint}, as in: python -m convs2s_jax.interop.fairseq import ...")
    for flag in NEEDED[command]:
        if not flag.value:
            raise UserError(f"--{flag.name} is missing: {command} needs {_names(NEEDED[command])}; see --help")
    for other, names in ONLY.items():
        for flag in names:
            if other != command and flag.present:
                raise UserError(f"--{flag.name} belongs to {other}: leave it out of {command}")
    if command == "import":
        import_checkpoints(_import(overrides), _tell)
        return
    if overrides:
        raise UserError(f"--config.{overrides[0][0]}: export takes its configuration from --workdir")
    if len(WORKDIR.value) != 1:
        raise UserError(f"--workdir names {len(WORKDIR.value)} folders: export takes one")
    languages = (SOURCE_LANG.value, TARGET_LANG.value)
    workdir, output = Path(WORKDIR.value[0]), Path(OUTPUT.value)
    order = Export(workdir=workdir, output=output, step=STEP.value, languages=languages, momentum=MOMENTUM.value)
    export_checkpoint(order, _tell)


def _import(overrides: Sequence[tuple[str, str]]) -> Import:
    if bool(SRC_SPM.value) != bool(TGT_SPM.value):
        raise UserError("--src_spm and --tgt_spm go together: give both models, or none")
    return Import(
        checkpoints=[Path(name) for name in CHECKPOINT.value],
        workdirs=[Path(name) for name in WORKDIR.value],
        dicts=Path(DICTS.value),
        languages=(SOURCE_LANG.value, TARGET_LANG.value),
        models=(Path(SRC_SPM.value), Path(TGT_SPM.value)) if SRC_SPM.value else (None, None),
        average=AVERAGE.value,
        momentum=MOMENTUM.value,
        config=CONFIG.value,
        overrides=overrides,
    )


def _names(needed: Flags) -> str:
    return ", ".join(f"--{flag.name}" for flag in needed)


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    given = sys.argv[1:]
    word = given.pop(0) if given and not given[0].startswith("-") else ""
    sys.argv = ["convs2s_jax.interop.fairseq", *given]
    run(lambda overrides: main(word, overrides))
