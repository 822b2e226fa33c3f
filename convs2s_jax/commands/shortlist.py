"""`convs2s shortlist`: learn the lexical shortlist of a run."""

import functools
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.decode import places_of_corpus
from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line, local_copies
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.core.places import joined

ABOUT = """
Learn a lexical shortlist, the likely target words of each source word, from the training text of a run:

  {program} --workdir=DIR [--words=50] [--frequent=100]

Decoding with --shortlist=DIR/shortlist then computes the softmax only over the likely words of each sentence
(docs/decoding.md). If the training text has moved, set --config.data.dir or --config.data.files to its new place.
"""


@dataclass(frozen=True, kw_only=True)
class ShortlistOptions:
    """The flags of `convs2s shortlist`.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME). The training
        text of the run must be available.
      output: file to write; default: "shortlist" in the workdir.
      words: number of likely target words per source word, under IBM model 1.
      frequent: number of most frequent target words that every sentence may use.
      iterations: number of iterations of expectation maximisation.
      pairs: maximum number of sentence pairs to learn from. For a longer text, only every second pair is read, or every
        third, and so on.
    """

    workdir: str = ""
    output: str = ""
    words: int = 50
    frequent: int = 100
    iterations: int = 5
    pairs: int = 500_000

    def __post_init__(self) -> None:
        check(self.workdir != "", "--workdir is missing, as in --workdir=runs/demo")
        for name in ("words", "iterations", "pairs"):
            check(getattr(self, name) >= 1, f"--{name} is {getattr(self, name)}: use 1 or more")
        check(self.frequent >= 0, f"--frequent is {self.frequent}: use 0 or more")


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Learn the shortlist and write it."""
    options = command_line.options_of(ShortlistOptions, values)
    places, others = places_of_corpus(overrides)
    command_line.refuse_overrides(others, "a shortlist")
    with ended_by_signals():
        from convs2s_jax.data import corpora
        from convs2s_jax.training.run import outputs, run_folder, store_copy
        from convs2s_jax.translation import shortlists
        from convs2s_jax.translation.jobs import output
        from convs2s_jax.translation.trained import moved

    outputs.check_outside_runs(options.output, "--output")
    place = options.output or joined(options.workdir, shortlists.NAME)
    with store_copy.opened(options.workdir) as workdir, local_copies.outgoing("--output", place, tell) as path:
        if options.output or workdir.is_dir():  # a missing workdir is reported below
            shortlists.check_writable(path)
        if options.output and workdir.is_dir():
            data = moved(run_folder.load_config(workdir, given_as="--workdir").data, places)
            whose = f"the corpus of --workdir={options.workdir}"
            output.check_not_overwriting(str(path), corpora.files_of(data), whose)
        made, vocabularies = shortlists.make(
            workdir,
            words=options.words,
            frequent=options.frequent,
            iterations=options.iterations,
            pairs=options.pairs,
            places=places,
            tell=tell,
        )
        shortlists.save(made, vocabularies, path)
    each = len(made.words) / max(1, len(made.offsets) - 1)
    tell(f"{place}: {each:.1f} target words per source word, and {len(made.always)} for every sentence")


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", ShortlistOptions),),
    main=main,
    stores=("workdir", "output"),
    memory="learn from fewer --pairs",
)
console = functools.partial(command_line.run, COMMAND)
