"""Curves from metrics.jsonl, and charts as Vega-Lite specifications, built with Altair; the page sets their colours."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt

from convs2s_jax.reporting.batch_plan import BatchPlan
from convs2s_jax.reporting.runs import Run

MOST = 1000
"""Maximum number of points per run and curve."""


class Point(NamedTuple):
    """A value from a report."""

    run: str
    split: str
    step: int
    value: float


@dataclass(frozen=True)
class Curve:
    """A quantity over the steps of all runs.

    Attributes:
      field: its name in metrics.jsonl.
      title: its display name.
      unit: unit of the values after scaling.
      points: points in order of run, split and step.
      left_out: number of reports that are not among the points.
    """

    field: str
    title: str
    unit: str
    points: tuple[Point, ...]
    left_out: int = 0


class Quantity(NamedTuple):
    """A field of metrics.jsonl.

    Attributes:
      title, unit: display names. {item} is what the run counts: target tokens, or the texts that a classifier labels.
      scale: factor from the value in the file to the unit.
    """

    title: str
    unit: str
    scale: float = 1.0


QUANTITIES = {
    "loss": Quantity("Loss", "nats per {item}"),
    "perplexity": Quantity("Perplexity", "per {item}"),
    "bleu": Quantity("BLEU", "points"),
    "chrf": Quantity("chrF", "points"),
    "ter": Quantity("TER", "edits per 100 words; lower is better"),
    "exact_match": Quantity("Exact match", "% of sentences"),
    "rouge1": Quantity("ROUGE-1", "points"),
    "rouge2": Quantity("ROUGE-2", "points"),
    "rougel": Quantity("ROUGE-L", "points"),
    "d2l_bleu": Quantity("d2l.ai BLEU", "sentence average"),
    "accuracy": Quantity("Accuracy", "%"),
    "macro_f1": Quantity("Macro F1", "%"),
    "learning_rate": Quantity("Learning rate", "at the last update before a report"),
    "grad_norm": Quantity("Gradient norm", "mean before clipping"),
    "tokens_per_second": Quantity("Throughput", "{item}s per second"),
    "memory": Quantity("Memory", "GB in use on the device that uses most", 1e-9),
    "memory_peak": Quantity("Peak memory", "GB on the device that uses most", 1e-9),
    "mfu": Quantity("Model FLOPs utilisation", "% of the devices' peak", 100.0),
    "input_share": Quantity("Waiting for batches", "% of the time", 100.0),
    "skipped": Quantity("Skipped updates", "since the last report"),
}
"""All quantities, in the order of the page."""
EXPECTED = ("loss", "perplexity", "bleu", "learning_rate", "grad_norm", "tokens_per_second", "memory", "mfu")
"""Quantities that the page lists as missing if no run has reported them."""


def curves(runs: Sequence[Run]) -> list[Curve]:
    """The curves of every quantity that at least one run has reported."""
    found = []
    for field, quantity in QUANTITIES.items():
        points, left_out = [], 0
        for run in runs:
            for split in ("train", "valid", "test"):
                own = [
                    Point(run.name, split, record["step"], record[field] * quantity.scale)
                    for record in run.reports_of(split)
                    if isinstance(record.get(field), (int, float)) and math.isfinite(record[field])
                ]
                kept = thinned(own, MOST)
                left_out += len(own) - len(kept)
                points += kept
        if points:
            found.append(Curve(field, quantity.title, _unit(quantity, runs, points), tuple(points), left_out))
    return found


def _unit(quantity: Quantity, runs: Sequence[Run], points: Sequence[Point]) -> str:
    """The unit for the runs that have points, or all units if they differ."""
    drawn = {point.run for point in points}
    items = ("text" if run.cfg.classifies else "target token" for run in runs if run.name in drawn)
    return " or ".join(dict.fromkeys(quantity.unit.format(item=item) for item in items))


def missing(found: Sequence[Curve]) -> list[str]:
    """Titles of expected quantities that no run has reported."""
    return [QUANTITIES[field].title for field in EXPECTED if field not in {curve.field for curve in found}]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Keep about `most` points: the lowest and highest of each interval, and the first and last of all."""
    if len(points) <= most:
        return list(points)
    stretches = max(1, most // 2 - 1)
    kept = {0, len(points) - 1}
    for i in range(stretches):
        stretch = range(i * len(points) // stretches, (i + 1) * len(points) // stretches)
        kept |= {min(stretch, key=lambda j: points[j].value), max(stretch, key=lambda j: points[j].value)}
    return [points[i] for i in sorted(kept)]


HEIGHT = 210
SPLITS = ("train", "valid", "test")
SHORT = (
    "abs(datum.value) >= 1e4 ? format(datum.value, '.3~s') "
    ": datum.value && abs(datum.value) < 1e-3 ? format(datum.value, '.2~e') : format(datum.value, ',.4~g')"
)
"""Format of numbers on an axis: 1,000 but 20k and 1e-4."""
SPOKEN = "'value: ' + datum.value + '; step: ' + datum.step + '; run: ' + datum.run + '; split: ' + datum.split"
"""Description of a point for screen readers."""
Spec = dict[str, Any]


def bundle() -> str:
    """The scripts that draw the charts: Vega, Vega-Lite and Vega-Embed, in the versions that Altair targets."""
    import vl_convert

    return vl_convert.javascript_bundle(vl_version=alt.SCHEMA_VERSION.rpartition(".")[0])


def curve(found: Curve, runs: Sequence[str]) -> Spec:
    """A curve for each run and split. Hovering over a point shows its value, step and run."""
    rows = [{"value": p.value, "step": p.step, "run": p.run, "split": p.split} for p in found.points]
    value = alt.Y("value:Q", title=found.unit, scale=alt.Scale(zero=False), axis=alt.Axis(labelExpr=SHORT, tickCount=5))
    step = alt.X("step:Q", title="step", axis=alt.Axis(format="~s", tickCount=6))
    fields = ["step", "run", "split"]
    near = alt.selection_point(
        name="near", fields=fields, nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    base = _of_shown_runs(rows)
    lines = base.mark_line(strokeWidth=1.8, aria=False).encode(
        step,
        value,
        color=_color(runs),
        strokeDash=alt.StrokeDash(
            "split:N", scale=alt.Scale(domain=SPLITS, range=[[1, 0], [6, 4], [1, 0]]), legend=None
        ),
    )
    opacity = alt.when(near).then(alt.value(1)).when("datum.split !== 'train'").then(alt.value(0.9))
    points = (
        # the whole datum, since fields that are not numbers would be undefined with `nearest` (Vega-Lite 6.4)
        base.mark_point(filled=True, tooltip={"content": "data"}, description={"expr": SPOKEN})
        .encode(
            step,
            value,
            color=_color(runs),
            shape=alt.Shape(
                "split:N", scale=alt.Scale(domain=SPLITS, range=["circle", "circle", "diamond"]), legend=None
            ),
            size=alt.when("datum.split === 'test'").then(alt.value(130)).otherwise(alt.value(48)),
            opacity=opacity.otherwise(alt.value(0)),
        )
        .add_params(near)
    )
    return _finished(alt.layer(lines, points), f"{found.title} by step", runs)


def lengths(plan: BatchPlan, counted: str, sides: tuple[str, str]) -> Spec:
    """A heat map of the lengths of pairs, or whatever `counted` calls them, with the shapes of batches outlined."""
    cells = [dict(zip(("s", "s2", "t", "t2", "pairs"), cell, strict=True)) for cell in plan.lengths]
    source = alt.X("s:Q", title=f"{sides[0]} tokens", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=8))
    target = alt.Y("t:Q", title=f"{sides[1]} tokens", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=6))
    counts = (
        alt.Chart(alt.Data(values=cells))
        .mark_rect(aria=False)
        .encode(
            source,
            target,
            x2="s2:Q",
            y2="t2:Q",
            color=alt.Color(
                "pairs:Q", scale=alt.Scale(type="log"), legend=alt.Legend(title=counted, gradientLength=90)
            ),
            tooltip=[
                alt.Tooltip("s:Q", title=f"{sides[0]} tokens from"),
                alt.Tooltip("t:Q", title=f"{sides[1]} tokens from"),
                alt.Tooltip("pairs:Q", title=counted, format=","),
            ],
        )
    )
    rows = [
        {"s": 0, "s2": row.shape.src + 1, "t": 0, "t2": row.shape.tgt + 1, "rows": row.shape.rows} for row in plan.rows
    ]
    outlines = (
        alt.Chart(alt.Data(values=rows))
        .mark_rect(fillOpacity=0, strokeWidth=1.5, stroke={"expr": "outline"})
        .encode(source, target, x2="s2:Q", y2="t2:Q")
    )
    corners = (
        alt.Chart(alt.Data(values=rows))
        .transform_calculate(label="datum.rows + ' x (' + (datum.s2 - 1) + ', ' + (datum.t2 - 1) + ')'")
        .mark_point(filled=True, size=50, fill={"expr": "outline"}, opacity=1)
        .encode(x="s2:Q", y="t2:Q", tooltip=[alt.Tooltip("label:N", title=f"rows x ({', '.join(sides)})")])
    )
    shapes = alt.layer(counts, outlines, corners).add_params(alt.param(name="outline", value="black"))
    return _finished(shapes, f"Lengths of the training {counted} and shapes of batches")


def by_length(rows: Sequence[Mapping[str, Any]], metric: str, runs: Sequence[str]) -> Spec:
    """Scores by bins of source length. Rows have run, bin, sentences and the metric."""
    order = list(dict.fromkeys(row["bin"] for row in rows))
    chart = (
        _of_shown_runs(rows)
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=alt.X("bin:N", sort=order, title="source tokens", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("run:N", sort=list(runs)),
            y=alt.Y(f"{metric}:Q", title=metric, axis=alt.Axis(tickCount=5)),
            color=_color(runs),
            tooltip=[
                alt.Tooltip(f"{metric}:Q", format=".2f"),
                alt.Tooltip("bin:N", title="source tokens"),
                alt.Tooltip("sentences:Q"),
                alt.Tooltip("run:N"),
            ],
        )
    )
    return _finished(chart, f"{metric} by source length", runs)


def fields(rows: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> Spec:
    """Receptive field after each layer. Rows have run, layer and tokens."""
    layer = alt.X("layer:Q", title="layers", axis=alt.Axis(tickMinStep=1, format="d", tickCount=8))
    tokens = alt.Y("tokens:Q", title="tokens seen", axis=alt.Axis(tickMinStep=1, tickCount=6))
    base = _of_shown_runs(rows).encode(layer, tokens, color=_color(runs))
    lines = base.mark_line(strokeWidth=1.8, aria=False)
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        tooltip=[alt.Tooltip("tokens:Q"), alt.Tooltip("layer:Q"), alt.Tooltip("run:N")]
    )
    return _finished(alt.layer(lines, points), "Receptive field after each layer", runs)


def _color(runs: Sequence[str]) -> alt.Color:
    return alt.Color("run:N", scale=alt.Scale(domain=list(runs)), legend=None)


def _of_shown_runs(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of the rows of the runs in `shown`, which the page sets."""
    return alt.Chart(alt.Data(values=list(rows))).transform_filter("indexof(shown, datum.run) >= 0")


def _finished(chart: Any, description: str, runs: Sequence[str] = ()) -> Spec:
    if runs:
        chart = chart.add_params(alt.param(name="shown", value=list(runs)))
    return chart.properties(width="container", height=HEIGHT, description=description).to_dict()
