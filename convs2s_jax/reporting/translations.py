"""Translations of held-out lines by a run's best checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass

from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.reporting.runs import Run
from convs2s_jax.search import keys
from convs2s_jax.search.batching import Batching
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.training.run import run_folder
from convs2s_jax.translation import lines as library
from convs2s_jax.translation import trained
from convs2s_jax.translation import translator as translators
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.trained import Trained


@dataclass(frozen=True)
class Translations:
    """A run's translations of held-out lines.

    Attributes:
      numbers: line numbers in the split, from 0.
      sources, references: the lines.
      lengths: number of tokens in each source, including the end symbol.
      texts: the translations.
      scores: score of each translation, in nats, normalised as in the search.
      total: number of lines in the whole split.
      made_by: description of the checkpoint and the search.
    """

    numbers: tuple[int, ...]
    sources: tuple[str, ...]
    references: tuple[str, ...]
    lengths: tuple[int, ...]
    texts: tuple[str, ...]
    scores: tuple[float, ...]
    total: int
    made_by: str


def search_of(run: Run, options: ReportOptions) -> SearchConfig:
    """The search options of a translation run, with overrides. Raises UserError if they do not fit the model."""
    given = Options(workdir=(str(run.workdir),), search=options.search)
    return given.resolve(run.cfg.search, attends=run.cfg.translator.attends)


def translates(run: Run) -> bool:
    """Whether the run's model translates."""
    return isinstance(run.cfg.model, ModelConfig) and run.cfg.model.reads_source


def restored(run: Run, tell: Tell) -> Trained:
    """Restore the model of a run. Raises UserError if it does not translate or no checkpoint can be read."""
    if not run.cfg.translator.reads_source:
        raise UserError("it is a language model, which does not translate")
    if not run_folder.has_checkpoint(run.workdir):
        raise UserError("it has no checkpoint yet")
    return trained.restore(run.workdir, (), None, tell)


def translate(run: Run, model: Trained, options: ReportOptions, tell: Tell) -> Translations:
    """Translate lines of a split.

    Args:
      run: the run.
      model: its model, from `restored`.
      options: the split, the number of lines, and the search.
      tell: called with messages for the user.

    Raises:
      UserError: the split cannot be read, it has changed since the run, or the search does not fit the model.
    """
    name, other = ("validation", "valid") if options.split == "test" else ("test", "test")
    remedy = f"use the {name} lines with --split={other}"
    text = trained.read_split(
        model.cfg, model.vocabularies, options.split, model.splits, run.place, tell=tell, remedy=remedy
    )
    search = search_of(run, options)
    numbers = spread(len(text), options.lines)
    sources = [text.src[i] for i in numbers]
    tell(f"{run.name}: translating {len(numbers)} of {len(text)} lines of the {options.split} split")
    request = library.TextRequest(
        search,
        sources,
        attention=False,
        key=keys.for_search(search, 0, range(len(sources))),
        batching=Batching(size=options.batch_size),
    )
    results = library.translate(translators.precomputed(translators.from_trained(model)), request)
    return Translations(
        numbers=tuple(numbers),
        sources=tuple(sources),
        references=tuple(text.tgt[i] for i in numbers),
        lengths=tuple(len(result.source_tokens) + 1 for result in results),
        texts=tuple(result.best.text for result in results),
        scores=tuple(float(result.best.score) for result in results),
        total=len(text),
        made_by=f"checkpoint {' and '.join(map(str, model.steps))}, {_described(search)}",
    )


def spread(total: int, most: int) -> list[int]:
    """At most `most` line numbers, evenly spaced over all lines, in order."""
    count = min(total, most)
    return [i * total // count for i in range(count)]


def chosen(lengths: Sequence[int], count: int, *, longest: int) -> list[int]:
    """Indices of `count` sentences with 2 to `longest` tokens, ordered from short to long."""
    ordered = sorted((length, i) for i, length in enumerate(lengths) if 1 < length <= longest)
    return [ordered[place][1] for place in spread(len(ordered), count)]


def _described(search: SearchConfig) -> str:
    """The beam size, and the other options that are not defaults."""
    plain, own = to_dict(SearchConfig()), to_dict(search)
    others = [f"{name} {value}" for name, value in own.items() if value != plain[name] and name != "beam_size"]
    return ", ".join([f"beam {search.beam_size}", *others])
