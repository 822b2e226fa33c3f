"""convs2s train --config=slicenet --config.data.dir=DIR --workdir=runs/slicenet

SliceNet (Kaiser, Gomez and Chollet 2018) at the size of Multi30k: separable convolutions under layer normalisation,
kernels that grow inside each module, inner-product attention. DIR contains {train,valid}.de and .en, tokenised and
lowercased. For larger corpora use embedding_dim 768, kernels (3, 7, 15, 31) and dropout 0.5, as in the paper.

Measured with seed 1 on 2 cores (docs/results.md): perplexity 6.30 on valid, BLEU 37.59 (test 2016, beam 5). The last
updates took 0.3 s each, with which 16 epochs take about 20 minutes.
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
            "encoder": {"kind": "slicenet", "modules": 3, "kernels": (3, 3, 7, 15)},
            "decoder": {"kind": "slicenet", "modules": 2, "kernels": (3, 3, 7, 15)},
        },
        "training": {
            "optimizer": {"kind": "adam"},
            "schedule": {"kind": "inverse_sqrt", "rate": 2e-3, "warmup": 1000},
            "clip": 2.0,
            "label_smoothing": 0.1,
            "max_epochs": 16,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
