"""convs2s train --config=multi30k_lightconv --config.data.dir=DIR --workdir=runs/multi30k_lightconv

LightConv (Wu et al. 2019) on Multi30k: one kernel per head, four heads, the same at all positions, of growing width.
Data, vocabularies, batches and width are those of configs/multi30k_de_en.py, for comparison. DIR contains
train.de, train.en, valid.de, valid.en (plain or .gz), tokenised and lowercased.

Measured in 6 minutes of updates on 2 cores, mean of seeds 1 to 3 (benchmarks/family.py; table in docs/results.md):
perplexity 6.25 on valid, BLEU 39.11 (test 2016, beam 5), 6 epochs of 56 s.
This file trains for 16 epochs. 4,083,012 parameters.
Peak learning rates other than 0.003 were not run to the end.
"""


def get_config():
    side = {
        "kind": "light",
        "convolution": "lightweight",
        "conv_dim": 128,
        "heads": 4,
        "ffn_dim": 256,
        "weight_dropout": 0.1,
    }
    return {
        "data": {
            "src": "de",
            "tgt": "en",
            "vocabulary": {"src_size": 10_000, "tgt_size": 7_000},
            "batch": {"tokens": 2000, "shapes": 12},
        },
        "model": {
            "embedding_dim": 128,
            "dropout": 0.2,
            "encoder": {**side, "layers": [3, 7, 15, 31]},
            "decoder": {**side, "layers": [3, 7, 15], "attention_dropout": 0.1},
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.98},
            "schedule": {"kind": "cosine", "rate": 3e-3, "warmup": 250, "steps": 4000},
            "clip": 0.0,
            "label_smoothing": 0.1,
            "max_epochs": 16,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
