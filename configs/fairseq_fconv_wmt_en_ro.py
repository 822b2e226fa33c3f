"""convs2s train --config=fairseq_fconv_wmt_en_ro --config.data.dir=DIR --workdir=runs/wmt_en_ro

fairseq's `fconv_wmt_en_ro`: 20 layers of 512 channels on both sides, the sizes of the paper. DIR contains
{train,valid,test}.en and .ro.

Published: none for training with fairseq; the paper's model has 30.02 BLEU (table 1). Neither score nor time was
measured here.

fairseq has no recipe for this preset, so this is its recipe for `fconv_wmt_en_de`. configs/paper_wmt16_en_ro.py
trains the same model as the paper did.

A checkpoint is also saved every 500 updates, about 9 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This is
an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    return {
        "data": {
            "src": "en",
            "tgt": "ro",
            "vocabulary": {"kind": "bpe", "src_size": 40_000, "joint": True},
            # fairseq counts tokens per device, but this is the whole batch: multiply it by the number of devices
            "batch": {"tokens": 4000},
        },
        "model": {
            "embedding_dim": 512,
            "dropout": 0.2,
            "encoder": {"layers": [(512, 3)] * 20},
            "decoder": {"layers": [(512, 3)] * 20, "out_dim": 512},
        },
        "training": {
            "save_every": 500,
            "optimizer": {"kind": "nesterov", "momentum": 0.99},
            "schedule": {"kind": "fixed", "rates": [0.5], "force_anneal": 50, "shrink": 0.1},
            "clip": 0.1,
            "label_smoothing": 0.1,
            "max_epochs": 55,
        },
        "search": {"beam_size": 5, "length_penalty": 1.0},
    }
