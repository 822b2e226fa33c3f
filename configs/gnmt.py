"""convs2s train --config=gnmt --config.data.dir=DIR --workdir=runs/gnmt

A deep stack of LSTM layers in the manner of GNMT (Wu et al. 2016): 8 + 8 layers of 1024 units, the first of the
encoder in both directions, residual connections from the third on, attention read from the first decoder layer and
given to all.
DIR holds {train,valid,test}.en and .de of WMT14.

Published: BLEU 24.61 on WMT14 English to German, 38.95 to French, before reinforcement learning. Neither score nor time
was measured here.

Sizes, joint sub-words (32,000), 128 pairs a batch, Adam at 0.0002, clipping at 5, dropout (0.3, for English to German)
and the penalties of the search (0.2 and 0.2) are those of the paper. The paper changes from Adam to plain gradient
descent after 60,000 steps; here a plateau halves Adam's rate. Its softmax reads the top layer; ours has a tanh layer
between. Its initialisation is uniform in [-0.04, 0.04].

A checkpoint is written every 250 updates too: about 10 minutes at 3 TFLOP/s and 6 FLOPs for each parameter and token,
an estimate for one GPU of 2017; on another machine set --config.training.save_every.
"""


def get_config():
    return {
        "data": {
            "src": "en",
            "tgt": "de",
            "vocabulary": {"joint": True, "src_size": 32_000},
            # 128 pairs, at about 30 sub-words a sentence
            "batch": {"tokens": 3840},
        },
        "model": {
            "embedding_dim": 1024,
            "dropout": 0.3,
            "encoder": {
                "kind": "recurrent",
                "cell": "lstm",
                "layers": 8,
                "units": 1024,
                "bidirectional": 1,
                "residual": 3,
            },
            "decoder": {
                "kind": "recurrent",
                "cell": "lstm",
                "layers": 8,
                "units": 1024,
                "residual": 3,
                "attention": "additive",
                "wiring": "previous",
                "out_dim": 1024,
            },
        },
        "training": {
            "save_every": 250,
            "optimizer": {"kind": "adam", "b2": 0.999},
            "schedule": {"kind": "plateau", "rate": 2e-4, "shrink": 0.5, "minimum": 1e-6},
            "clip": 5.0,
        },
        "search": {"length_penalty_kind": "gnmt", "length_penalty": 0.2, "coverage_penalty": 0.2},
    }
