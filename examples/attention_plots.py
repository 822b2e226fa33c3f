"""Draw the attention of each layer of a decoder and their mean for lines of text, as in appendix C of the paper:

    python examples/attention_plots.py

The arguments are the workdir of a translation run (runs/first) and a folder for the pictures (pictures). Standard input
has a source sentence on each line, which the run translates first.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from convs2s_jax.translation import trained
from convs2s_jax.translation.attention import layer_attention


def picture(one):
    """A panel for each layer and for their mean, source across and target down; a row of a panel sums to one."""
    panels = {**dict(zip(one.names, one.layers, strict=True)), "mean": one.mean}
    width, height = (0.2 * len(tokens) + 1 for tokens in (one.source_tokens, one.target_tokens))
    figure = Figure(figsize=(len(panels) * width + 1, height), layout="constrained")
    places = figure.subplots(1, len(panels))
    for axes, (name, weights) in zip(places, panels.items(), strict=True):
        image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(one.source_tokens)), one.source_tokens, rotation=90)
        axes.set_yticks(range(len(one.target_tokens)), one.target_tokens)
        axes.xaxis.tick_top()
        axes.set_xlabel(name)
    figure.colorbar(image, ax=list(places))
    return figure


def main(workdir="runs/first", folder="pictures", lines=sys.stdin):
    run = trained.restore(Path(workdir), (), None, print)
    Path(folder).mkdir(exist_ok=True)
    for number, one in enumerate(layer_attention(run, [line.strip() for line in lines]), 1):
        picture(one).savefig(Path(folder) / f"{number:04}.png", dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:3])
