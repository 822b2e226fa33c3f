"""convs2s train --config=multi30k_conv_gru --config.data.dir=DIR --workdir=runs/conv_gru

A convolutional encoder with a recurrent decoder, after Gehring et al. 2016 (arXiv 1611.02344), on Multi30k. DIR is as
for multi30k_de_en.py; vocabulary, token budget and label smoothing are the same, for comparison.

Measured in 6 minutes of updates on 2 cores, mean of seeds 1 to 3 (benchmarks/family.py; table in docs/results.md):
perplexity 7.31 on valid, BLEU 36.78 +- 1.20 (test 2016, beam 5), 7 epochs of 47 s.
This file trains for 16 epochs. 4.16 M parameters.

The encoder has the layers of multi30k_de_en.py. The decoder and its training are those of multi30k_gru.py, except for a
warm-up, without which one of three seeds did not recover from its first epoch, and for a bilinear attention, which is
the paper's product of a mapped decoder state with the encoder's outputs. The paper has two stacks of convolutions with
tanh, one for keys and one for values, and an LSTM of 256 units. Here one stack of gated convolutions computes both, and
the decoder is a GRU.
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
            "encoder": {"kind": "conv", "layers": [(128, 3)] * 4},
            "decoder": {
                "kind": "recurrent",
                "cell": "gru",
                "units": 256,
                "attention": "general",
                "wiring": "previous",
                "out_dim": 128,
            },
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.999},
            "schedule": {"kind": "fixed", "rates": [4e-3], "warmup": 100, "force_anneal": 15},
            "clip": 1.0,
            "label_smoothing": 0.1,
            "max_epochs": 16,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
