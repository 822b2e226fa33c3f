"""convs2s train --config=gnmt --config.data.dir=DIR --workdir=runs/gnmt

A deep LSTM stack like GNMT (Wu et al. 2016): 8 + 8 layers of 1024 units, the first encoder layer bidirectional,
residual connections from the third layer on, attention computed from the first decoder layer and passed to all.
DIR contains {train,valid,test}.en and .de of WMT14.

Published: BLEU 24.61 on WMT14 English to German, 38.95 to French, before reinforcement learning. Neither score nor time
was measured here.

Sizes, joint sub-words (32,000), 128 pairs per batch, Adam at 0.0002, clipping at 5, dropout (0.3, for English to
German) and the search penalties (0.2 and 0.2) are from the paper. The paper switches from Adam to plain gradient
descent after 60,000 steps; here the learning rate of Adam is halved on plateaus. Its softmax reads the top layer; ours
has a tanh layer in between. Its initialisation is uniform in [-0.04, 0.04].

A checkpoint is also saved every 250 updates, about 10 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This is
an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    return {
        "data": {
            "src": "en",
            "tgt": "de",
            "vocabulary": {"joint": True, "src_size": 32_000},
            # 128 pairs at about 30 sub-words per sentence
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
