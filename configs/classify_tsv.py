"""convs2s train --config=classify_tsv --config.data.dir=DIR --workdir=runs/labels

Text classification on your own data: the classifier of Kim 2014 in the paper's size, words as tokens, nothing
pretrained. DIR contains train.tsv, valid.tsv and optionally test.tsv, plain or with .gz, with a label, a TAB and a text
on each line. Without valid.tsv, a tenth of train.tsv is held out.

convs2s decode --workdir=runs/labels --input=texts --output=labels

writes a label and its probability for each line. For a convolutional encoder with pooling instead of Kim's features,
set --config.model.features.kind=pooled. No score was measured, since it depends on your data.
"""


def get_config():
    return {
        "data": {
            "corpus": "tsv",
            "hold_out": 0.1,
            "vocabulary": {"kind": "words", "src_size": 30_000},
            "batch": {"tokens": 4096, "max_length": 4096, "cut_source": True},
        },
        "model": {
            "kind": "classifier",
            "embedding_dim": 300,
            "dropout": 0.5,
            "features": {"kind": "kim"},  # widths 3, 4 and 5, 100 maps each
        },
        "training": {
            "optimizer": {"kind": "adam"},
            "schedule": {"kind": "plateau", "rate": 0.001, "minimum": 1e-5},
            "clip": 0.0,
            "max_epochs": 25,
        },
    }
