"""Create a report: read the runs, translate held-out lines, and write the page."""

import contextlib
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from convs2s_jax.core import files, local_copies
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.packages import versions
from convs2s_jax.reporting import charts, runs, scores, summary, translations
from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.reporting.runs import Run
from convs2s_jax.reporting.translations import Translations, chosen
from convs2s_jax.training.run import store_copy
from convs2s_jax.translation.attention import layer_attention
from convs2s_jax.translation.lines import encode
from convs2s_jax.translation.trained import Trained

PAGE = "index.html"
F1 = "f1/"
"""Prefix of the report fields with the F1 of a label."""
ATTENTION, LONGEST = 6, 40
"""Number of sentences per run whose attention is shown, and the most tokens of a side for a readable matrix."""
Section = dict[str, Any]


def report(options: ReportOptions, *, when: str, tell: Tell) -> Path:
    """Write the report of some runs, and return the path of its page.

    Args:
      options: which runs and what to show.
      when: the time, for the footer of the page.
      tell: called with messages for the user.

    Raises:
      UserError: a run does not exist, the search options do not fit it, or the output cannot be written.
    """
    path = Path(options.output) / PAGE
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(store_copy.opened(workdir, reports=True)) for workdir in options.workdir]
        found = runs.read_all(options.workdir, folders)
        for run in found:
            if translations.translates(run):
                translations.search_of(run, options)
        with files.writing(f"--output={options.output}", "choose another folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace_file(path, page(content(found, options, tell), when=when))
    for run in found:
        for problem in run.problems:
            tell(f"{run.name}: {problem}")
    return path


def content(found: Sequence[Run], options: ReportOptions, tell: Tell) -> dict[str, Any]:
    """What the page shows, by section. Arguments and errors are as in `report`.

    "absent" has a sentence for each run that the scores and translations, or the attention, leave out.
    """
    absent: dict[str, list[str]] = {"scores": [], "attention": []}
    texts: dict[str, Translations] = {}
    seen: list[Section] = []
    for run in found if options.lines else ():
        try:
            model = translations.restored(run, local_copies.with_address(tell, run.workdir, run.place))
            texts[run.name] = translations.translate(run, model, options, tell)
            seen += attentions(run, model, texts[run.name], absent["attention"])
        except UserError as error:
            reason = str(error).replace(str(run.workdir), run.place)
            absent["scores"].append(f"{run.name} is omitted: {reason}.")
            tell(f"{run.name}: translations are omitted ({reason})")
    if not options.lines:
        absent["scores"].append("Nothing was translated, since --lines is 0.")
    same = comparable(texts, absent["scores"])
    return {
        "title": " and ".join(run.name for run in found) if len(found) < 4 else f"{len(found)} runs",
        "split": options.split,
        "runs": [{"run": run, "facts": summary.facts(run)} for run in found],
        "curves": [
            {"title": quantity.title, "chart": charts.curve(rows, field)}
            for field, quantity in charts.QUANTITIES.items()
            if (rows := charts.points(found, field))
        ],
        "samples": sample_section(found),
        "labels": label_section(found),
        "scores": score_section(same, tokenize=found[0].cfg.training.bleu_tokenize) if same else None,
        "translations": translation_section(same) if same else None,
        "attention": seen,
        "absent": absent,
    }


def comparable(texts: Mapping[str, Translations], absent: list[str]) -> dict[str, Translations]:
    """The runs that translated the same lines as the first. For others, a sentence is added to `absent`."""
    first = next(iter(texts.values()), None)
    same = {
        name: one
        for name, one in texts.items()
        if first is not None and (one.sources, one.references) == (first.sources, first.references)
    }
    absent += [
        f"{name} is omitted: its lines differ from those of {next(iter(same))}; create a separate report for it."
        for name in texts
        if name not in same
    ]
    return same


def sample_section(found: Sequence[Run]) -> list[Section]:
    """Each sampled sentence with the outputs of the runs. Consecutive steps with the same output share an entry."""
    sentences: dict[tuple[str, str], list[Section]] = {}
    for run in found:
        before = dict[tuple[str, str], Section]()
        for step, samples in run.samples.items():
            for source, text, reference in samples:
                key = (source, reference)
                if key in before and before[key]["text"] == text:
                    before[key]["last"] = step
                    continue
                pieces = scores.differences(text, reference)
                before[key] = {"run": run, "step": step, "last": step, "text": text, "pieces": pieces}
                sentences.setdefault(key, []).append(before[key])
    return [
        {"source": source, "reference": reference, "versions": versions}
        for (source, reference), versions in sentences.items()
    ]


def label_section(found: Sequence[Run]) -> Section | None:
    """F1 of each label on the test set, in percent, for the runs that classify; None if there are no scores."""
    reports = {run.name: summary.report_on_test_set(run) or {} for run in found}
    tests = {name: test for name, test in reports.items() if any(field.startswith(F1) for field in test)}
    fields = dict.fromkeys(field for test in tests.values() for field in test if field.startswith(F1))
    if not fields:
        return None
    rows = [(field.removeprefix(F1), [test.get(field) for test in tests.values()]) for field in fields]
    return {"runs": {name: test["step"] for name, test in tests.items()}, "rows": rows}


def score_section(found: Mapping[str, Translations], *, tokenize: str) -> Section:
    """Scores of runs on the same lines, with intervals and tests against the first run."""
    first = next(iter(found.values()))
    measured = scores.measure({name: one.texts for name, one in found.items()}, first.references, tokenize=tokenize)
    return {"measured": measured, "lines": len(first.texts), "total": first.total}


def translation_section(found: Mapping[str, Translations]) -> Section:
    """Every line with the translations of all runs, their scores, and what differs from the reference."""
    from sacrebleu.metrics import CHRF

    first, chrf = next(iter(found.values())), CHRF()  # which is also meaningful for short sentences
    lines = [
        {
            "number": number + 1,
            "source": first.sources[i],
            "reference": first.references[i],
            "length": first.lengths[i],
            "runs": {
                name: {
                    "pieces": scores.differences(one.texts[i], first.references[i]),
                    "chrf": chrf.sentence_score(one.texts[i], [first.references[i]]).score,
                    "score": one.scores[i],
                }
                for name, one in found.items()
            },
        }
        for i, number in enumerate(first.numbers)
    ]
    return {"made_by": {name: one.made_by for name, one in found.items()}, "lines": lines}


def attentions(run: Run, model: Trained, found: Translations, absent: list[str]) -> list[Section]:
    """Attention for a few lines, ordered from short to long, as JSON values. Without any, `absent` gets a sentence."""
    if not model.cfg.translator.attends:
        absent.append(f"{run.name} is omitted: its decoder has no attention weights.")
        return []
    lengths = [len(ids) + 1 for ids in encode(model.vocabularies.tgt, found.texts)]
    longer = [max(pair) if min(pair) > 1 else 1 for pair in zip(found.lengths, lengths, strict=True)]
    places = chosen(longer, ATTENTION, longest=min(LONGEST, model.cfg.translator.max_target))
    if not places:
        absent.append(f"{run.name} is omitted: no source and translation have at most {LONGEST} tokens.")
        return []
    seen = layer_attention(model, [found.sources[i] for i in places], [found.texts[i] for i in places])
    return [
        {
            "name": f"{run.name}, line {found.numbers[i] + 1}: {found.sources[i]}",
            "source": list(one.source_tokens),
            "target": list(one.target_tokens),
            "layers": {
                name: np.round(weights, 3).tolist()
                for name, weights in (("mean", one.mean), *zip(one.names, one.layers, strict=True))
            },
        }
        for i, one in zip(places, seen, strict=True)
    ]


def page(data: Mapping[str, Any], *, when: str) -> str:
    """The HTML of a report: `data` is what `content` returns. Texts of a corpus are escaped by the template."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("convs2s_jax.reporting", "static"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["language"] = language
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    shared = importlib.resources.files("convs2s_jax.translation").joinpath("static")
    own = importlib.resources.files("convs2s_jax.reporting").joinpath("static")
    scripts = (charts.bundle(), _text(shared / "attention.js"), _text(own / "report.js"))
    return environment.get_template("report.html").render(
        **data,
        when=when,
        versions=versions("jax", "sacrebleu", "altair"),
        styles=_text(shared / "attention.css") + _text(own / "report.css"),
        scripts=[code.replace("</script", "<\\/script").replace("<!--", "<\\!--") for code in scripts],
    )


def language(side: str) -> str:
    """The lang attribute for a text of a corpus: the name of its side if that is a language code, or ""."""
    known = re.fullmatch("(?!src$|tgt$)[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*", side)
    return side.replace("_", "-") if known else ""


def _text(file: Any) -> str:
    return str(file.read_text(encoding="utf-8"))
