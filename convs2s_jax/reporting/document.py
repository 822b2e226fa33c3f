"""The content of a report as JSON values, with one function for each section, and the page that shows it."""

import html
import importlib.resources
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convs2s_jax.models.config import ModelConfig, receptive_fields
from convs2s_jax.reporting import batch_plan, charts, scores, summary
from convs2s_jax.reporting.batch_plan import BatchPlan
from convs2s_jax.reporting.charts import curves, missing
from convs2s_jax.reporting.runs import Run
from convs2s_jax.reporting.translations import Translations, chosen
from convs2s_jax.translation.attention import LayerAttention, layer_attention
from convs2s_jax.translation.lines import encode
from convs2s_jax.translation.trained import Trained

STEPS = 60
"""Maximum number of validations per run whose samples are shown."""
F1 = "f1/"
"""Prefix of the report fields with the F1 of a label."""
Section = dict[str, Any]


def overview(runs: Sequence[Run]) -> list[Section]:
    """A paragraph and a table for each run."""
    return [
        {
            "name": run.name,
            "source": run.cfg.data.src,
            "target": run.cfg.data.tgt,
            "paragraph": summary.paragraph(run),
            "facts": summary.facts(run),
            "problems": list(run.problems),
        }
        for run in runs
    ]


def curve_section(runs: Sequence[Run]) -> Section:
    """The curves, and notes on missing ones."""
    names, found = [run.name for run in runs], curves(runs)
    notes = [
        f"{one.title}: {one.left_out:,} reports are not drawn; the highest and lowest of each interval are shown."
        for one in found
        if one.left_out
    ]
    if found and (absent := missing(found)):
        notes.append(f"Not reported: {', '.join(absent)} (docs/training.md explains when they are).")
    drawn = [
        {"field": one.field, "title": one.title, "unit": one.unit, "spec": charts.curve(one, names)} for one in found
    ]
    return {"charts": drawn, "notes": notes}


def plan_section(runs: Sequence[Run]) -> list[Section]:
    """Shapes and padding of batches. Runs with the same plan are shown together."""
    found: list[tuple[BatchPlan | None, list[str], Run]] = []
    for run in runs:
        plan = batch_plan.of_run(run.cfg, run.workdir)
        same = next((names for other, names, _ in found if plan is not None and other == plan), None)
        if same is None:
            found.append((plan, [run.name], run))
        else:
            same.append(run.name)
    return [_plan(plan, names, run) for plan, names, run in found]


def _plan(plan: BatchPlan | None, names: list[str], run: Run) -> Section:
    if plan is None:
        logged = f" The run recorded: {run.facts.batches}." if run.facts.batches else ""
        return {
            "runs": names,
            "note": f"The tokenised text of the run, which determines its batches, was not found.{logged}",
        }
    rows = [[str(row.shape), row.batches, row.pairs, 100 * row.padding] for row in plan.rows]
    batches = sum(row.batches for row in plan.rows)
    note = f"The first epoch has {batches:,} batches; {100 * plan.padding:.1f} % of their cells are padding."
    counted, sides = ("texts", ("text", "label")) if run.cfg.classifies else ("pairs", ("source", "target"))
    spec = charts.lengths(plan, counted, sides)
    return {"runs": names, "note": note, "rows": rows, "spec": spec, "counted": counted, "sides": sides}


def sample_section(runs: Sequence[Run]) -> list[Section]:
    """Each sampled sentence with the outputs of the runs. Consecutive steps with the same output share an entry."""
    found: dict[tuple[str, str], list[Section]] = {}
    for run in runs:
        steps, before = list(run.samples), dict[tuple[str, str], Section]()
        for step in itertools.compress(steps, _kept(len(steps), STEPS)):
            for sample in run.samples[step]:
                key = (sample.source, sample.reference)
                if key in before and before[key]["text"] == sample.hypothesis:
                    before[key]["last"] = step
                    continue
                pieces = scores.differences(sample.hypothesis, sample.reference)
                before[key] = {"run": run.name, "step": step, "last": step, "text": sample.hypothesis, "pieces": pieces}
                found.setdefault(key, []).append(before[key])
    return [
        {"source": source, "reference": reference, "versions": versions}
        for (source, reference), versions in found.items()
    ]


def output_name(runs: Sequence[Run]) -> str:
    """The title for the samples of the runs: translations, labels, or both."""
    names = ("Label" if run.cfg.classifies else "Translation" for run in runs if run.samples)
    return " or ".join(dict.fromkeys(names))


def label_section(runs: Sequence[Run]) -> Section | None:
    """F1 of each label on the test set, in percent, for the runs that classify; None if there are no scores."""
    tests = {run.name: test for run in runs if (test := summary.report_on_test_set(run)) and any(map(_label, test))}
    if not tests:
        return None
    labels = dict.fromkeys(label for test in tests.values() for field in test if (label := _label(field)))
    steps = [f"step {test['step']:,}" + (f" of {name}" if len(runs) > 1 else "") for name, test in tests.items()]
    return {
        "runs": list(tests),
        "rows": [{"label": label, "f1": [test.get(F1 + label) for test in tests.values()]} for label in labels],
        "about": f"In percent on the test set, at {' and '.join(steps)}.",
    }


def _label(field: str) -> str:
    """The label whose F1 is stored in a field of a report, or ""."""
    return field.removeprefix(F1) if field.startswith(F1) else ""


def score_section(found: Mapping[str, Translations], *, tokenize: str, resamples: int) -> Section:
    """Scores of runs on the same lines, with intervals, tests against the first run, and scores by length."""
    first = next(iter(found.values()))
    texts = {name: one.texts for name, one in found.items()}
    measured = scores.measure(texts, first.references, tokenize=tokenize, resamples=resamples)
    bins = scores.length_bins(first.lengths)
    rows = []
    for name, one in found.items():
        by_bin = scores.by_length(one.texts, first.references, bins, tokenize=tokenize)
        for part, values in zip(bins, by_bin, strict=True):
            label = str(part.shortest) if part.shortest == part.longest else f"{part.shortest}-{part.longest}"
            rows.append({"run": name, "bin": label, "sentences": len(part.lines), **values})
    return {
        "measured": [one._asdict() for one in measured],
        "lengths": rows,
        "charts": [charts.by_length(rows, metric, list(found)) for metric in ("BLEU", "chrF2")],
        "about": f"{len(first.texts):,} of {first.total:,} lines; 95 % intervals from {resamples:,} bootstrap samples.",
    }


def translation_section(found: Mapping[str, Translations]) -> Section:
    """Every line with the translations of all runs and differences from the reference and the first run."""
    names, all_of = list(found), list(found.values())
    first = all_of[0]
    chrf = [scores.of_sentences(one.texts, first.references) for one in all_of]
    lines = []
    for i, number in enumerate(first.numbers):
        runs = [
            {
                "score": one.scores[i],
                "chrf": chrf[j][i],
                "reference": scores.differences(one.texts[i], first.references[i]),
                "first": scores.differences(one.texts[i], first.texts[i]) if j else None,
                "other": scores.differences(first.texts[i], one.texts[i]) if j else None,
            }
            for j, one in enumerate(all_of)
        ]
        lines.append(
            {
                "line": number + 1,
                "source": first.sources[i],
                "reference": first.references[i],
                "length": first.lengths[i],
                "runs": runs,
            }
        )
    searches = [f"{name}: {one.search}; checkpoint {_steps(one)}" for name, one in found.items()]
    return {"runs": names, "lines": lines, "searches": searches}


def _steps(found: Translations) -> str:
    return " and ".join(f"{step:,}" for step in found.steps)


def _kept(count: int, most: int) -> list[bool]:
    """Which of `count` items to keep: at most `most`, evenly spaced, always including the last."""
    if count <= most:
        return [True] * count
    kept = {round(i * (count - 1) / (most - 1)) for i in range(most)}
    return [i in kept for i in range(count)]


PACKAGE = "convs2s_jax.reporting"
SHARED = "convs2s_jax.translation"
"""Its static files draw attention weights, here and on the server's page."""


def page(data: Mapping[str, Any], *, charts: str) -> str:
    """The HTML of a report.

    Args:
      data: what `document.document` returns; JSON values.
      charts: the scripts that draw charts (`charts.bundle`).
    """
    parts = {
        "title": html.escape(data["title"]),
        "styles": _static(SHARED, "attention.css") + _static(PACKAGE, "report.css"),
        "data": embedded(data),
        "charts": script(charts),
        "attention": script(_static(SHARED, "attention.js")),
        "tables": script(_static(PACKAGE, "tables.js")),
        "report": script(_static(PACKAGE, "report.js")),
    }
    text = _static(PACKAGE, "report.html")
    for name, part in parts.items():
        before, mark, after = text.partition(f"<!-- {name} -->")
        if not mark:
            raise ValueError(f"report.html has no place for {name}")
        text = before + part + after
    return text


def embedded(data: Any) -> str:
    """JSON for a script element. No text of a corpus can end the element or begin a comment."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def script(code: str) -> str:
    """Code for a script element, with `</script` in strings escaped, since it would end the element."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _static(package: str, name: str) -> str:
    return importlib.resources.files(package).joinpath("static", name).read_text(encoding="utf-8")


MEAN = "mean"
LONGEST = 40
"""Maximum number of tokens in a sentence or translation for a readable matrix."""


def attentions(run: Run, model: Trained, found: Translations, count: int, absent: list[str]) -> list[dict[str, Any]]:
    """Attention for a few lines, ordered from short to long. If there is none, a sentence is added to `absent`."""
    if not model.cfg.translator.attends:
        absent.append(f"{run.name} is omitted: its decoder has no attention weights.")
        return []
    lengths = [len(ids) + 1 for ids in encode(model.vocabularies.tgt, found.texts)]
    longer = [max(pair) if min(pair) > 1 else 1 for pair in zip(found.lengths, lengths, strict=True)]
    places = chosen(longer, count, longest=min(LONGEST, model.cfg.translator.max_target))
    if not places:
        absent.append(
            f"{run.name} is omitted: no sentence has at most {LONGEST} tokens in both source and translation."
        )
        return []
    seen = layer_attention(model, [found.sources[i] for i in places], [found.texts[i] for i in places])
    return [
        {"run": run.name, "line": found.numbers[i] + 1, **as_json(one)} for i, one in zip(places, seen, strict=True)
    ]


def as_json(one: LayerAttention) -> dict[str, Any]:
    """Tokens and matrices as JSON values, the mean of the layers first. Weights are rounded to three decimals."""
    layers = [(MEAN, one.mean), *zip(one.names, one.layers, strict=True)]
    return {
        "source": list(one.source_tokens),
        "target": list(one.target_tokens),
        "layers": [{"name": name, "weights": np.round(weights, 3).tolist()} for name, weights in layers],
    }


def field_section(runs: Sequence[Run], absent: list[str]) -> list[dict[str, Any]]:
    """Receptive fields of encoders and decoders by layer. For unbounded ones, a sentence is added to `absent`."""
    found: dict[str, list[dict[str, Any]]] = {"encoder": [], "decoder": []}
    for run in runs:
        if not isinstance(run.cfg.model, ModelConfig):
            absent.append(f"{run.name} is omitted: it is a {run.cfg.model.kind}.")
            continue
        seen = receptive_fields(run.cfg.model)
        for side, tokens in (("encoder", seen.encoder), ("decoder", seen.decoder)):
            if tokens is None:
                absent.append(f"{run.name}: its {side} is recurrent, so its receptive field is unbounded.")
            elif tokens:
                found[side] += [{"run": run.name, "layer": i, "tokens": n} for i, n in enumerate((1, *tokens))]
    names = [run.name for run in runs]
    return [{"side": side, "rows": rows, "spec": charts.fields(rows, names)} for side, rows in found.items() if rows]
