"""convs2s train --config=paper_wmt14_en_de --config.data.dir=DIR --workdir=runs/wmt14_en_de

WMT'14 English-German with the architecture of Gehring et al. 2017: 15 layers on both sides, 512 to 2048 channels. DIR
contains {train,valid,test}.en and .de.

Published: 25.16 BLEU, 25.39 for the best of three runs, 26.43 for an ensemble of eight (tables 1 and 2 of the paper,
newstest2014). Neither score nor time was measured here.

Sizes, optimiser, annealing, clipping, loss (no label smoothing) and beam are those of section 4 of the paper. The
dropout rate 0.2 is from fairseq's recipe for this task.

A checkpoint is also saved every 1,000 updates, about 10 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This
is an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    layers = [(512, 3)] * 10 + [(768, 3)] * 3 + [(2048, 1)] * 2
    return {
        "data": {
            "src": "en",
            "tgt": "de",
            "vocabulary": {"kind": "bpe", "src_size": 40_000, "joint": True},
            # the paper's 64 sentences at about 30 units per sentence: 64 * 30 plus some padding
            "batch": {"tokens": 2000},
        },
        "model": {
            "embedding_dim": 512,
            "dropout": 0.2,
            "encoder": {"layers": layers},
            "decoder": {"layers": layers, "out_dim": 512},
        },
        "training": {
            "save_every": 1000,
            "optimizer": {"kind": "nesterov", "momentum": 0.99},
            "schedule": {"kind": "plateau", "rate": 0.25, "shrink": 0.1, "minimum": 1e-4},
            "clip": 0.1,
        },
        "search": {"beam_size": 5, "length_penalty": 1.0},
    }
