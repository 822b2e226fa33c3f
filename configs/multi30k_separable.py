"""convs2s train --config=multi30k_separable --config.data.dir=DIR --workdir=runs/multi30k_separable

Like configs/multi30k_convs2s.py, including its learning rate, but each convolution is depthwise separable (Chollet
2017): first over time, then over channels. A window of five words costs less than a dense one of two, so windows
are wider here. DIR contains {train,valid}.de and .en of Multi30k, tokenised and lowercased.

Measured in 6 minutes of updates on 2 cores, mean of seeds 1 to 3 (benchmarks/family.py; table in docs/results.md):
perplexity 6.41 on valid, BLEU 40.14 (test 2016, beam 5), 8 epochs of 45 s.
This file trains for 16 epochs. 3.75 M parameters.
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
            "encoder": {"layers": [(128, 5)] * 4, "convolution": {"kind": "separable"}},
            "decoder": {"layers": [(128, 5)] * 3, "convolution": {"kind": "separable"}, "out_dim": 128},
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
