"""Charts as Vega-Lite specifications, built with Altair: the curves of metrics.jsonl."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from convs2s_jax.reporting.runs import Run

MOST = 1000
"""Maximum number of points per run and curve."""
SPLITS = ("train", "valid", "test")
Row = Mapping[str, Any]
Spec = dict[str, Any]


class Quantity(NamedTuple):
    """A field of metrics.jsonl: its title and unit, and the factor from the value in the file to this unit.

    A target is a token of a translation, or the label of a text.
    """

    title: str
    unit: str
    scale: float = 1.0


QUANTITIES = {
    "loss": Quantity("Loss", "nats per target"),
    "perplexity": Quantity("Perplexity", "per target"),
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
    "tokens_per_second": Quantity("Throughput", "targets per second"),
    "memory": Quantity("Memory", "GB in use on the device that uses most", 1e-9),
    "memory_peak": Quantity("Peak memory", "GB on the device that uses most", 1e-9),
    "mfu": Quantity("Model FLOPs utilisation", "% of the devices' peak", 100.0),
    "input_share": Quantity("Waiting for batches", "% of the time", 100.0),
    "skipped": Quantity("Skipped updates", "since the last report"),
}
"""All quantities, in the order of the page."""


def points(runs: Sequence[Run], field: str) -> list[Row]:
    """The finite values of a quantity as {run, split, step, value}, in order of run, split and step."""
    scale, found = QUANTITIES[field].scale, list[Row]()
    for run in runs:
        for split in SPLITS:
            own = [
                {"run": run.name, "split": split, "step": record["step"], "value": record[field] * scale}
                for record in run.reports_of(split)
                if isinstance(record.get(field), int | float) and math.isfinite(record[field])
            ]
            found += thinned(own, MOST)
    return found


def thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """Keep about `most` points: the lowest and highest of each interval, and the first and last of all."""
    if len(rows) <= most:
        return list(rows)
    intervals = max(1, most // 2 - 1)
    kept = {0, len(rows) - 1}
    for i in range(intervals):
        interval = range(i * len(rows) // intervals, (i + 1) * len(rows) // intervals)
        kept |= {least(interval, key=lambda j: rows[j]["value"]) for least in (min, max)}
    return [rows[i] for i in sorted(kept)]


def bundle() -> str:
    """The scripts that draw the charts: Vega, Vega-Lite and Vega-Embed, in the versions that Altair targets."""
    import vl_convert

    return vl_convert.javascript_bundle(vl_version=alt.SCHEMA_VERSION.rpartition(".")[0])


CHOSEN = alt.selection_point(name="chosen", fields=["run"], bind="legend")
SHOWN = alt.when(CHOSEN).then(alt.value(1)).otherwise(alt.value(0.1))
"""Opacity of a run: a click on one in the legend fades the others."""


def curve(rows: Sequence[Row], field: str) -> Spec:
    """A line for each run and split."""
    scale, axis = alt.Scale(zero=False), alt.Axis(format=".4~g", tickCount=5)
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        alt.X("step:Q", axis=alt.Axis(format="~s", tickCount=6)),
        alt.Y("value:Q", title=QUANTITIES[field].unit, scale=scale, axis=axis),
        color=alt.Color("run:N", sort=None),
        tooltip=[alt.Tooltip("value:Q", format=".6~g"), "step:Q", "run:N", "split:N"],
    )
    lines = base.mark_line().encode(strokeDash=alt.StrokeDash("split:N", sort=SPLITS), strokeOpacity=SHOWN)
    held_out = base.transform_filter("datum.split != 'train'").mark_point(filled=True, size=40).encode(opacity=SHOWN)
    has_more = any(row["split"] != "train" for row in rows)
    layers = [lines, *([held_out] if has_more else []), base.mark_point(size=80, opacity=0)]  # the last for tooltips
    chart: Any = alt.layer(*layers).add_params(CHOSEN)
    description = f"{QUANTITIES[field].title} by step"
    return dict(chart.properties(width="container", height=210, description=description).to_dict())
