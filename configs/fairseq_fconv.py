"""convs2s train --config=fairseq_fconv --config.data.dir=DIR --workdir=runs/fairseq_fconv

fairseq's default architecture, `fconv`: 20 layers of 512 channels on both sides, 256 before the softmax. DIR contains
{train,valid,test}.de and .en; choose other languages with --config.data.src and --config.data.tgt.

We know of no published score for it. Neither score nor time was measured here.

fairseq has no recipe for this preset. Dropout is its default, 0.1; the rest is the recipe for IWSLT'14 of
configs/iwslt14_de_en.py, with annealing at epoch 50 as in the recipes for WMT.

A checkpoint is also saved every 1,000 updates, about 12 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This
is an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    return {
        "data": {
            "src": "de",
            "tgt": "en",
            "vocabulary": {"kind": "bpe", "src_size": 10_000, "tgt_size": 10_000},
            # fairseq counts tokens per device, but this is the whole batch: multiply it by the number of devices
            "batch": {"tokens": 4000},
        },
        "model": {
            "embedding_dim": 512,
            "dropout": 0.1,
            "encoder": {"layers": [(512, 3)] * 20},
            "decoder": {"layers": [(512, 3)] * 20, "out_dim": 256},
        },
        "training": {
            "save_every": 1000,
            "optimizer": {"kind": "nesterov", "momentum": 0.99},
            "schedule": {"kind": "fixed", "rates": [0.25], "force_anneal": 50, "shrink": 0.1},
            "clip": 0.1,
            "label_smoothing": 0.1,
            "max_epochs": 55,
        },
        "search": {"beam_size": 5, "length_penalty": 1.0},
    }
