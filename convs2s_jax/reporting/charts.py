"""Charts as Vega-Lite specifications, built with Altair. Colours are set by the page for its light and dark themes."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from convs2s_jax.reporting.batch_plan import BatchPlan
from convs2s_jax.reporting.curves import Curve

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
