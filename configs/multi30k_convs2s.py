"""convs2s train --config=multi30k_convs2s --config.data.dir=DIR --workdir=runs/convs2s

ConvS2S on Multi30k with the layers of multi30k_de_en.py: 4.2 M parameters, about as many as the models that
benchmarks/family.py compares it with. Like them it is trained with Adam; multi30k_de_en.py uses the optimiser of the
paper. DIR is the same.

Measured in 6 minutes of updates on 2 cores, mean of seeds 1 to 3 (benchmarks/family.py; table in docs/results.md):
perplexity 6.20 on valid, BLEU 40.61 (test 2016, beam 5), 8 epochs of 41 s.
This file trains for 16 epochs.

Also tried for an epoch or two with seed 1. After the first epoch, Nesterov at 0.5 and 1.0 had perplexities of 46.7 and
35.1 on valid (60 and 47 on the last batches of train); Adam at 0.002 had 32 on these batches.
"""


def get_config():
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
            "encoder": {"layers": [(128, 3)] * 4},
            "decoder": {"layers": [(128, 3)] * 3, "out_dim": 128},
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.999},
            "schedule": {"kind": "fixed", "rates": [2e-3], "force_anneal": 15},
            "clip": 1.0,
            "label_smoothing": 0.1,
            "max_epochs": 16,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
