"""What makes the commands of the documentation small, and which of them are not run: tables for tests/pages.py."""

from collections.abc import Mapping
from types import MappingProxyType

NOT_RUN: Mapping[str, str] = MappingProxyType(
    {
        "pip install": "an installation: tests/test_installation.py has one",
        "launch/gcloud_tpu.sh": "a cloud: tests/launch has stand-ins",
        "gcloud storage": "a cloud",
        "launch/xpk.sh": "a cluster: tests/launch has stand-ins",
        "jobset.sh tpu create": "a cluster: tests/launch has stand-ins",
        "jobset.sh tpu log": "a cluster: tests/launch has stand-ins",
        "kubectl apply": "a cluster",
        "srun": "a cluster",
        "sbatch": "a cluster: tests/launch has stand-ins",
        "ssh node": "four machines",
        "docker": "docker and a registry of images",
        "=gs://": "a bucket: tests/training/run/test_stores_drill.py has emulators",
        "--topology=v5e": "the compiler of TPUs: tests/scaling has it where it is installed",
        "fairseq-generate": "fairseq",
        "--fairseq=": "fairseq",
        **dict.fromkeys(
            ("git clone", "cd fairseq", "git checkout", "peer_adapt.py", "fairseq-env"), "fairseq's sources"
        ),
        **dict.fromkeys(("setup.py build_ext", "fairseq.pth"), "fairseq's sources"),
        "benchmarks/prepare_kftt.py": "a download: tests/test_benchmarks.py has a few lines",
        "benchmarks/accelerator.py": "an accelerator: tests/test_benchmarks.py runs it with --small",
        "benchmarks/train.py": "a download: Multi30k, whose words its vocabularies of 10,000 need",
        "benchmarks/decode.py": "a download: Multi30k, whose words its vocabularies of 10,000 need",
        "benchmarks/family.py": "hours: tests/test_benchmarks.py has its parts",
    }
)
"""Part of a command -> what it needs that a test has not. All other commands of all pages are run."""

SMALL = {"[(128, 3)] * 4": "[(16, 3)]", "[(128, 3)] * 3": "[(16, 3)]", '"embedding_dim": 128': '"embedding_dim": 16'}
BRIEF = {'"training": {': '"search": {"beam_size": 1, "max_length_a": 0.0, "max_length_b": 8},\n        "training": {'}
"""Models that have learned nothing yet translate without an end."""
TINY = " --config.model.embedding_dim=16" + "".join(
    f" --config.model.{side}.layers='[(16, 3)]'" for side in ("encoder", "decoder")
)

SERVED = (
    "convs2s serve --workdir=runs/mine --port=8080 --beam_size=1 --max_tokens=16 --batch_size=8 &\n"
    "curl --silent --fail --output /dev/null --retry 300 --retry-all-errors --retry-delay 1 localhost:8080/ready"
)
"""A server that is asked, where a page leaves it in front."""
SHORTER: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "docs/tutorial.md": {
            "train=30_000, valid=500, test=500": "train=2_000, valid=50, test=50",
            "src_size=1500": "src_size=300",
            "tgt_size=1500": "tgt_size=300",
            "max_epochs=2": f"max_epochs=2 --config.data.batch.shapes=2{TINY}",
            "max_epochs=4": f"max_epochs=3 --config.data.batch.shapes=2{TINY}",
            "convs2s serve": "convs2s serve --beam_size=1 --max_tokens=16 --batch_size=8",
            "--max_tokens=32": "--max_tokens=16 --beam_size=1",
        },
        "docs/how-to/classifier.md": {
            "train=6_000": "train=1_000",
            "max_epochs=5": "max_epochs=2 --config.data.batch.shapes=2",
        },
        "docs/how-to/big-corpus.md": {
            "train=60_000, valid=500, test=500": "train=4_000, valid=20, test=20",
            **BRIEF,
            "30_000": "2_000",
            '"src_size": 2000, "tgt_size": 2000': '"src_size": 300, "tgt_size": 300',
            '"shapes": 8': '"shapes": 2',
            '"max_steps": 200': '"max_steps": 6',
            '"validate_every": 100': '"validate_every": 3',
            "max_steps=250": "max_steps=8",
            "max_steps=50": "max_steps=3",
            **SMALL,
        },
        "docs/how-to/back-translation.md": {
            "train=15_000, valid=500, test=500": "train=600, valid=20, test=20",
            **BRIEF,
            "[:3000]": "[:500]",
            "[3000:]": "[500:]",
            '"src_size": 1000, "tgt_size": 1000': '"src_size": 200, "tgt_size": 200',
            '"shapes": 6': '"shapes": 2',
            '"max_steps": 300': '"max_steps": 5',
            **SMALL,
        },
        "docs/how-to/pod.md": {
            "--config=cldr_en_de": "--config=cldr_en_de --config.data.vocabulary.src_size=300"
            f" --config.data.vocabulary.tgt_size=300 --config.data.batch.shapes=2{TINY}",
            "train=4000": "train=1000 --config.data.cldr.valid=50 --config.data.cldr.test=50",
            "max_steps=20": "max_steps=4",
        },
        "docs/index.md": {"convs2s serve --workdir=runs/mine": SERVED},
        "docs/serving.md": {"convs2s serve --workdir=runs/demo --port=8080": SERVED.replace("mine", "demo")},
        "docs/decoding.md": {
            "yes '' | head -n 5": "printf '\\n\\n'",  # yes ends by a signal, which a strict shell takes for a mistake
            "--checkpoint=1600": "--checkpoint=1",
            "--checkpoint=1212,1600": "--checkpoint=1,2",
            "--sampling --beam_size=4 --nbest=4": "--sampling --beam_size=2 --nbest=2",
        },
        "docs/distributed.md": {"convs2s train": "rm -rf runs/a; convs2s train"},
        "docs/results.md": {
            "max_steps=7000": "max_steps=2",
            "max_steps=30000": "max_steps=2",
            "--checkpoint=8832": "--checkpoint=1",
            "--checkpoint=13000,13500,14000,14500,15000": "--checkpoint=1,2",
        },
        "docs/performance.md": {
            "--repeats 5": "--repeats 1",
            "CONFIG ... --rows 32": "configs/fairseq_fconv_iwslt_de_en.py --layers 1 --vocabulary=100 --rows 4",
            "--layers 15": "--layers 1 --vocabulary=100 --rows 4 --length 8",
        },
        "docs/training.md": {"[(256, 3)] * 4 + [(512, 1)]": "[(16, 3)] + [(24, 1)]", "=NEW": "=DIR"},
    }
)
"""What is run with less of everything, to take minutes: page -> text of its blocks -> what replaces it."""
SHOWS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "docs/tutorial.md": ("continuing at step", '{"translations":', "looks at"),
        "docs/how-to/classifier.md": ("macro_f1", '"labels":'),
        "docs/how-to/big-corpus.md": ("continuing at step",),
        "docs/how-to/pod.md": ("all-gather over fsdp", "kind: JobSet"),
    }
)
"""What a page's commands print, among other things."""
FROM_NOTHING = (
    "docs/tutorial.md",
    *(f"docs/how-to/{name}.md" for name in ("back-translation", "big-corpus", "classifier", "pod")),
)
"""Pages whose commands begin in an empty folder; each of them is shortened by SHORTER alone."""
DEVICES: Mapping[str, int] = MappingProxyType({"docs/distributed.md": 8, "docs/scaling.md": 8})
"""Virtual devices of pages whose commands take it for granted that there are several."""
BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "docs/report.md": "cp -r runs/demo runs/a; cp -r runs/demo runs/b",
        "docs/decoding.md": "for name in a b c mails; do cp -r runs/demo runs/$name; done; "
        "cp DIR/test.* FOLDER/test.* .\n"
        "echo > empty.txt; cp right.de given.de; echo > begins.de",
        "docs/reproducibility.md": "cp -r runs/demo runs/b",
        "docs/fairseq.md": "mkdir export; convs2s export --workdir=runs/demo --output=export/checkpoint.pt\n"
        "mv export/checkpoint.pt FILE.pt; mv export/dict.* DIR; cp lines.en FILE",
    }
)
"""What a page takes for granted besides, as shell commands."""

BRIEFLY = (
    " --config.training.max_steps=2 --config.training.save_every=1"
    " --config.data.batch.shapes=1 --config.data.batch.tokens=2000"
    " --config.data.cldr.train=600 --config.data.cldr.valid=8 --config.data.cldr.test=8"
)
SHORT = " --config.search.beam_size=1 --config.search.max_length_a=0.0 --config.search.max_length_b=24"
CUT = " --config.data.vocabulary.src_size=250 --config.data.vocabulary.tgt_size=250"
TRANSLATOR = BRIEFLY + SHORT + CUT + TINY + " --config.model.decoder.out_dim=16"
ONE_LAYER = "".join(f" --config.model.{side}.layers='[3]'" for side in ("encoder", "decoder"))
LESS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("cldr_en_de", "iwslt14_de_en", "multi30k_de_en", "your_text", "paper_wmt14_en_de"), TRANSLATOR
        ),
        "kftt_ja_en": TRANSLATOR,
        "kftt_ja_en_lightconv": BRIEFLY + SHORT + CUT + ONE_LAYER,
        "kftt_ja_en_large": BRIEFLY
        + SHORT
        + CUT
        + ONE_LAYER
        + " --config.model.embedding_dim=16 --config.model.encoder.conv_dim=16 --config.model.decoder.conv_dim=16",
        "aeslc": TRANSLATOR,
        "scan_convs2s": BRIEFLY + TINY,
        "scan_gru": BRIEFLY + " --config.model.encoder.units=16 --config.model.decoder.units=16",
        "lm_cldr": BRIEFLY + TINY.replace("encoder.layers", "decoder.layers"),
        "classify_cldr": BRIEFLY,
        "classify_tsv": BRIEFLY,
    }
)
"""Configuration -> flags that stand right behind it in the commands of all other pages, whose own flags come later."""
PREPARED = """
python - <<'END'
from pathlib import Path
from convs2s_jax.data.cldr import CldrConfig, generate

ENDINGS = (("en", "body", "ja", "in"), ("de", "subject", "ann0", "ann1", "ann2", "out"))
for folder in ("DIR", "FOLDER", "CORPUS", "DIR/SPLIT"):
    Path(folder).mkdir()
    for split, sides in generate("en", "de", CldrConfig(train=600, valid=8, test=8)).items():
        for texts, endings in zip(sides, ENDINGS, strict=True):
            for ending in endings:
                Path(f"{folder}/{split}.{ending}").write_text("\\n".join(texts) + "\\n", encoding="utf-8")
        labelled = [f"{number % 2}\\t{text}\\n" for number, text in enumerate(sides[0])]
        Path(f"{folder}/{split}.tsv").write_text("".join(labelled), encoding="utf-8")
END
gzip DIR/test.*
for side in de en; do cp DIR/test.$side.gz DIR/test_2016_flickr.$side.gz; done
head -n 2 FOLDER/test.en | tee lines.en some.en > sentences.en
head -n 2 FOLDER/test.de | tee right.de > sentences.de
convs2s train --config=cldr_en_de --workdir=runs/demo
"""
"""Makes what the other pages take for granted."""
