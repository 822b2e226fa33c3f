"""convs2s train --config=fairseq_fconv_wmt_en_de --config.data.dir=DIR --workdir=runs/wmt_en_de

fairseq's `fconv_wmt_en_de`: 15 layers on both sides, 512 to 2048 channels, embeddings of 768. These are not the paper's
sizes; for those use configs/paper_wmt14_en_de.py. DIR contains {train,valid,test}.en and .de.

Published: none that we know of for this preset; the paper's own model has 25.16 BLEU (table 1). Neither score nor
time was measured here.

Dropout 0.2, batches of 4000 tokens, learning rate 0.5 annealed from epoch 50 on, Nesterov momentum 0.99, clipping at
0.1 and label smoothing 0.1 are fairseq's recipe for this preset. The end after 55 epochs is from fairseq's recipe for
many devices.

A checkpoint is also saved every 500 updates, about 14 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This is
an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    layers = [(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2
    return {
        "data": {
            "src": "en",
            "tgt": "de",
            "vocabulary": {"kind": "bpe", "src_size": 40_000, "joint": True},
            # fairseq counts tokens per device, but this is the whole batch: multiply it by the number of devices
            "batch": {"tokens": 4000},
        },
        "model": {
            "embedding_dim": 768,
            "dropout": 0.2,
            "encoder": {"layers": layers},
            "decoder": {"layers": layers, "out_dim": 512},
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
