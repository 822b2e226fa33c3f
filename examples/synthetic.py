"""Training text that models write, and a second opinion on translations, as commands around `convs2s decode`:

    python examples/synthetic.py
    python examples/synthetic.py back-translate --workdir=REVERSE --input=mono.en --output=bt
    python examples/synthetic.py distil --workdir=TEACHER --output=distilled [--input=some.de]
    python examples/synthetic.py reverse --workdir=RUN --output=FOLDER
    python examples/synthetic.py rerank --workdir=RUN --right_to_left=OTHER --input=a.de --output=a.en --reference=b.en

--nbest=10, --weight=1 and --tag='<bt>' are those by default. Other flags, and those after a --, are flags of `convs2s
decode`, such as --beam_size=5: --resume continues an interrupted command, --parts=N divides it among all processes that
run it. What was decoded stays in files OUTPUT*.jsonl.
"""

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
from pathlib import Path

from convs2s_jax.commands.decode import COMMAND, search_options
from convs2s_jax.core.command_line import parse
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import replacing
from convs2s_jax.core.guard import guard
from convs2s_jax.data import corpora
from convs2s_jax.data.text_files import each_line, read_lines
from convs2s_jax.metrics import scoring
from convs2s_jax.training.run.run_folder import load_config
from convs2s_jax.translation.jobs.output import check_not_overwriting

SHARED = ("normalize", "length_penalty", "length_penalty_kind", "coverage_penalty", "temperature", "unk_penalty")
SHARED += ("dtype", "batch_size", "batch_tokens", "window", "resume", "parts")
"""Flags of decoding that apply to the right-to-left model too."""


def back_translate(given, passed):
    """Sample sources of target text by a run from target to source (Sennrich et al. 2016, Edunov et al. 2018)."""
    data, pair = translated(given, passed, "--sampling", f"--input={given.input}")
    real = {"train": [(f"train.{data.tgt}", f"train.{data.src}")]}
    with contextlib.suppress(UserError):  # the corpus has moved
        for split in corpora.SPLITS if data.corpus == "files" else ():
            there = [source.files for source in corpora.SOURCES["files"](data, split)]
            real[split] = [one[::-1] if len(one) > 1 else one[0] for one in there] or real.get(split, [])
    mixture = [{"files": real.pop("train")}, {"files": [pair[::-1]], "tag": given.tag}]  # Caswell et al. 2019
    return flags({"corpus": "files", "dir": "", "files": real, "mixture": mixture})


def distil(given, passed):
    """Translate the training sources of a run, or --input, by beam search: new targets (Kim and Rush 2016)."""
    _, pair = translated(given, passed, f"--input={given.input}" if given.input else "--split=train")
    return flags({"corpus": "files", "files.train": [pair]})


def reverse(given, _passed):
    """Write the corpus of a run with the words of each target reversed, to train a right-to-left model on."""
    files = {}
    for split in corpora.SPLITS:
        cfg, pair = opened(given, f"/{split}")
        if (text := corpora.read(cfg.data, split)) is not None:
            Path(given.output).mkdir(exist_ok=True)
            write(pair, zip(text.src, (" ".join(line.split()[::-1]) for line in text.tgt), strict=True))
            files[split] = [pair]
    return flags({"corpus": "files", "dir": "", "files": files, "mixture": []})


def rerank(given, passed):
    """Choose from each n-best list the largest score + weight * right-to-left score (Liu et al. 2016)."""
    cfg, pair = opened(given, ".nbest")
    load_config(Path(given.right_to_left), given_as="--right_to_left")
    check_not_overwriting(given.output, [given.input, given.reference], "a file to read")
    nbest = (f"--nbest={given.nbest}", f"--beam_size={given.nbest}", f"--input={given.input}")
    found = [*decode(given.workdir, f"{given.output}.nbest.jsonl", *nbest, *passed)]
    write(pair, ((source, " ".join(text.split()[::-1])) for source, texts in found for text, _ in texts))
    values, overrides = parse(COMMAND, passed)
    values |= search_options(values, overrides)
    shared = [f"--{name}={value}" for name, value in values.items() if name in SHARED]
    files = (f"--input={pair[0]}", f"--score={pair[1]}")
    others = decode(given.right_to_left, f"{given.output}.scores.jsonl", *files, *shared)
    best = []
    for _, texts in found:
        both = [(score, next(others)[1][0][1]) for _, score in texts]  # None if not finite
        sums = [float("-inf") if None in one else one[0] + given.weight * one[1] for one in both]
        best.append(texts[sums.index(max(sums))][0])
    write([given.output], zip(best, strict=True))
    how = {"metrics": cfg.training.metrics, "bleu_tokenize": cfg.training.bleu_tokenize}
    return scoring.report(scoring.score(best, [read_lines(given.reference)], **how)) if given.reference else ""


def opened(given, more=""):
    """The configuration of the run, and the paths of two parallel files to write, none of which is a file to read."""
    cfg = load_config(Path(given.workdir))
    check(cfg.examples == "pairs", f"--workdir={given.workdir} does not translate: use a run with two sides of text")
    pair = tuple(f"{given.output}{more}.{side}" for side in (cfg.data.src, cfg.data.tgt))
    for path in pair:
        check_not_overwriting(path, [given.input, *corpora.files_of(cfg.data)], "the input or of the run's corpus")
    return cfg, pair


def translated(given, passed, *flags):
    """Write text and its translations; the configuration of the run's data, and the paths of source and target."""
    cfg, pair = opened(given)
    found = decode(given.workdir, f"{given.output}.jsonl", *flags, *passed)
    write(pair, ((source, text) for source, texts in found for text, _ in texts))
    return cfg.data, pair


def decode(workdir, path, *flags):
    """Call `convs2s decode`, where the last of equal flags counts, and join parts; sources with texts and scores."""
    calls = [["decode", *flags, f"--workdir={workdir}", "--format=json"], ["merge"]]
    for call in calls[: 1 + bool(parse(COMMAND, flags)[0].get("parts"))]:
        command = [sys.executable, "-m", "convs2s_jax", *call, f"--output={path}"]
        if status := subprocess.run(command, check=False).returncode:
            sys.exit(status)
    found = map(json.loads, each_line(path))
    return ((one["source"], [(each["text"], each["score"]) for each in one["hypotheses"]]) for one in found)


def write(paths, rows):
    """Write the columns of rows as the lines of files, which appear once they are whole."""
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(replacing(Path(path))) for path in paths]
        files = [stack.enter_context(open(place, "w", encoding="utf-8", newline="\n")) for place in places]
        for row in rows:
            for file, text in zip(files, row, strict=True):
                file.write(text.replace("\n", " ") + "\n")


def flags(data):
    return shlex.join(f"--config.data.{name}={json.dumps(data[name], ensure_ascii=False)}" for name in data)


def main(arguments):
    """Run a recipe, and print the flags that train on what it wrote, or scores."""
    parser = argparse.ArgumentParser(epilog=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False)
    parser.add_argument("recipe", choices=RECIPES)
    for name, default in FLAGS.items():
        parser.add_argument(f"--{name}", default=default, type=type(default), required=name in ("workdir", "output"))
    given, passed = parser.parse_known_args(arguments or ["--help"])
    check(given.input or given.recipe in ("distil", "reverse"), "--input is missing: set it to the text to translate")
    print(RECIPES[given.recipe](given, [one for one in passed if one != "--"]))


FLAGS = {"workdir": "", "output": "", "input": "", "reference": "", "right_to_left": ""}
FLAGS |= {"tag": "<bt>", "nbest": 10, "weight": 1.0}
RECIPES = {"back-translate": back_translate, "distil": distil, "reverse": reverse, "rerank": rerank}
if __name__ == "__main__":
    guard(lambda: main(sys.argv[1:]), program=Path(__file__).name)
