"""Create a report: read the runs, translate what is missing, and write the page."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convs2s_jax.core import local_copies
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.files import replace_file
from convs2s_jax.core.guard import writing_remedy
from convs2s_jax.core.packages import versions
from convs2s_jax.core.places import joined
from convs2s_jax.reporting import charts, document, runs, translations
from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.reporting.runs import Run
from convs2s_jax.reporting.translations import Translations
from convs2s_jax.training.run import store_copy
from convs2s_jax.translation.trained import Trained

PAGE, TRANSLATIONS = "index.html", "translations"
"""The page, and the folder of translations that the next report reuses, in the output."""


def report(options: ReportOptions, *, when: str, tell: Tell, scripts: Callable[[], str] = charts.bundle) -> str:
    """Write the report of some runs, and return the path or address of its page.

    Args:
      options: which runs and what to show.
      when: the time, for the footer of the page.
      tell: called with messages for the user.
      scripts: returns the scripts that draw the charts.

    Raises:
      UserError: a run does not exist, the search options do not fit it, or the output cannot be written.
    """
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(store_copy.opened(workdir, reports=True)) for workdir in options.workdir]
        found = runs.read_all(options.workdir, folders)
        for run in found:
            if translations.translates(run):
                translations.search_of(run, options)
        output, told, *_ = stack.enter_context(
            local_copies.outgoing_folder("--output", options.output, tell, reused=(f"{TRANSLATIONS}/",), last=PAGE)
        )
        try:
            output.mkdir(parents=True, exist_ok=True)
            data = content(found, options, output / TRANSLATIONS, when=when, tell=told)
            replace_file(output / PAGE, document.page(data, charts=scripts()))
        except OSError as error:
            remedy = writing_remedy(error, "choose another folder")
            raise UserError(f"--output={options.output} cannot be written: {error.strerror}; {remedy}") from error
        for run in found:
            for problem in run.problems:
                tell(f"{run.name}: {problem}")
        return joined(options.output, PAGE)


def content(found: Sequence[Run], options: ReportOptions, folder: Path, *, when: str, tell: Tell) -> dict[str, Any]:
    """The content of the page as JSON values. Arguments and errors are as in `report`."""
    absent: dict[str, list[str]] = {"scores": [], "attention": [], "fields": []}
    models, texts = _translated(found, options, folder, absent, tell)
    seen: list[dict[str, Any]] = []
    for run in found:
        if run.name in texts and options.attention:
            seen += document.attentions(run, models[run.name], texts[run.name], options.attention, absent["attention"])
    same = comparable(texts, absent["scores"])
    tokenize = found[0].cfg.training.bleu_tokenize
    first = next(iter(same), None)
    return {
        "title": " and ".join(run.name for run in found) if len(found) < 4 else f"{len(found)} runs",
        "when": when,
        "versions": versions("jax", "sacrebleu", "altair"),
        "split": options.split,
        "runs": document.overview(found),
        "curves": document.curve_section(found),
        "plans": document.plan_section(found),
        "samples": document.sample_section(found),
        "output": document.output_name(found),
        "labels": document.label_section(found),
        "scores": document.score_section(same, tokenize=tokenize, resamples=options.resamples) if first else None,
        "translations": document.translation_section(same) if first else None,
        "attention": seen,
        "fields": document.field_section(found, absent["fields"]),
        "absent": absent,
    }


def _translated(
    found: Sequence[Run], options: ReportOptions, folder: Path, absent: Mapping[str, list[str]], tell: Tell
) -> tuple[dict[str, Trained], dict[str, Translations]]:
    """Models and translations by run name. For each run without them, a sentence is added to `absent`."""
    models: dict[str, Trained] = {}
    texts: dict[str, Translations] = {}
    if not options.lines:
        absent["scores"].append("Nothing was translated, since --lines is 0.")
        return models, texts
    for run in found:
        try:
            models[run.name] = translations.restored(run, _placed(run, tell))
            texts[run.name] = translations.translate(run, models[run.name], options, folder, tell)
        except UserError as error:
            reason = run.with_place(str(error))
            absent["scores"].append(f"{run.name} is omitted: {reason}.")
            tell(f"{run.name}: translations are omitted ({reason})")
    return models, texts


def _placed(run: Run, tell: Tell) -> Tell:
    """A `tell` that gives the address of a run in place of the path of its copy."""
    return lambda sentence: tell(run.with_place(sentence))


def comparable(texts: Mapping[str, Translations], absent: list[str]) -> dict[str, Translations]:
    """The runs that translated the same lines as the first. For others, a sentence is added to `absent`."""
    first = next(iter(texts.values()), None)
    same = {name: one for name, one in texts.items() if first is not None and one.same_lines == first.same_lines}
    absent += [
        f"{name} is omitted: its lines differ from those of {next(iter(same))}; create a separate report for it."
        for name in texts
        if name not in same
    ]
    return same
