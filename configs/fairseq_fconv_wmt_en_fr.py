"""convs2s train --config=fairseq_fconv_wmt_en_fr --config.data.dir=DIR --workdir=runs/wmt_en_fr

fairseq's `fconv_wmt_en_fr`: 15 layers on both sides, 512 to 4096 channels, embeddings of 768. These are not the paper's
sizes; for those use configs/paper_wmt14_en_fr.py. DIR contains {train,valid,test}.en and .fr.

Published: none that we know of for this preset; the paper's own model has 40.51 BLEU (table 1). Neither score nor
time was measured here.

Dropout 0.1, batches of 3000 tokens, learning rate 0.5 annealed from epoch 50 on, Nesterov momentum 0.99, clipping at
0.1 and label smoothing 0.1 are fairseq's recipe for this preset. The end after 55 epochs is from fairseq's recipe for
many devices.

A checkpoint is also saved every 500 updates, about 13 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This is
an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    layers = [(512, 3)] * 6 + [(768, 3)] * 4 + [(1024, 3)] * 3 + [(2048, 1), (4096, 1)]
    return {
        "data": {
            "src": "en",
            "tgt": "fr",
            "vocabulary": {"kind": "bpe", "src_size": 40_000, "tgt_size": 40_000},
            # fairseq counts tokens per device, but this is the whole batch: multiply it by the number of devices
            "batch": {"tokens": 3000},
        },
        "model": {
            "embedding_dim": 768,
            "dropout": 0.1,
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
