"""convs2s train --config=paper_wmt16_en_ro --config.data.dir=DIR --workdir=runs/wmt16_en_ro

WMT'16 English-Romanian with the architecture of Gehring et al. 2017: 20 layers of 512 channels on both sides. DIR
contains {train,valid,test}.en and .ro.

Published: 30.02 BLEU with 40,000 joint sub-words, 29.45 with words (table 1 of the paper, one model, newstest2016).
Neither score nor time was measured here.

Sizes, optimiser, annealing, clipping, loss (no label smoothing) and beam are those of section 4 of the paper. The
dropout rate 0.2 is our choice; fairseq's recipes use it for the task of the most similar size, English-German.

A checkpoint is also saved every 1,000 updates, about 9 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This
is an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    return {
        "data": {
            "src": "en",
            "tgt": "ro",
            "vocabulary": {"kind": "bpe", "src_size": 40_000, "joint": True},
            # the paper's 64 sentences at about 30 units per sentence: 64 * 30 plus some padding
            "batch": {"tokens": 2000},
        },
        "model": {
            "embedding_dim": 512,
            "dropout": 0.2,
            "encoder": {"layers": [(512, 3)] * 20},
            "decoder": {"layers": [(512, 3)] * 20, "out_dim": 512},
        },
        "training": {
            "save_every": 1000,
            "optimizer": {"kind": "nesterov", "momentum": 0.99},
            "schedule": {"kind": "plateau", "rate": 0.25, "shrink": 0.1, "minimum": 1e-4},
            "clip": 0.1,
        },
        "search": {"beam_size": 5, "length_penalty": 1.0},
    }
