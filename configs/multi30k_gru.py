"""convs2s train --config=multi30k_gru --config.data.dir=DIR --workdir=runs/gru

The encoder-decoder of Bahdanau et al. 2015 on Multi30k: a bidirectional GRU, and a GRU with additive attention to it.
DIR is as for multi30k_de_en.py; vocabulary, token budget and label smoothing are the same, for comparison.

Measured in 6 minutes of updates on 2 cores, mean of seeds 1 to 3 (benchmarks/family.py; table in docs/results.md):
perplexity 8.70 on valid, BLEU 34.80 (test 2016, beam 5), 5 epochs of 64 s.
This file trains for 16 epochs. 4.33 M parameters.

Embeddings of 128 and 256 units are half the sizes of a popular tutorial on this corpus (bentrevett/pytorch-seq2seq,
part 3, which trains on words). Adam and clipping at 1 are from there too; Bahdanau et al. have 620, 1000 and Adadelta.
The dropout rate is ours, and so is dividing the learning rate by ten before the last epochs, as for ConvS2S. The
learning rate was chosen with seed 1: after one epoch 0.001, 0.002 and 0.004 had perplexities of 74.9, 48.0 and 26.5 on
valid. Higher rates were not tried.
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
            "encoder": {"kind": "recurrent", "cell": "gru", "units": 256, "bidirectional": 1},
            "decoder": {
                "kind": "recurrent",
                "cell": "gru",
                "units": 256,
                "attention": "additive",
                "wiring": "previous",
                "out_dim": 128,
            },
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.999},
            "schedule": {"kind": "fixed", "rates": [4e-3], "force_anneal": 15},
            "clip": 1.0,
            "label_smoothing": 0.1,
            "max_epochs": 16,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
