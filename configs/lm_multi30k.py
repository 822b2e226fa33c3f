"""convs2s train --config=lm_multi30k --config.data.dir=DIR --workdir=runs/lm_multi30k

A convolutional language model (Dauphin et al. 2016) of the English side of Multi30k. DIR contains train.en and
valid.en, tokenised and lowercased. To combine it with a translation model it needs that model's vocabulary:
--config.data.vocabulary.dir=runs/multi30k/vocab. Other text helps more than the corpus that the translation model was
trained on: --config.data.files.train='[("", "more.en")]'.

Time and score: not measured yet.
"""


def get_config():
    return {
        "data": {
            "tgt": "en",
            "vocabulary": {"tgt_size": 7_000},
            "batch": {"tokens": 2000, "shapes": 12},
        },
        "model": {
            "embedding_dim": 128,
            "dropout": 0.2,
            "encoder": {"kind": "none"},
            "decoder": {"layers": [(128, 4)] * 4, "out_dim": 128, "attention_layers": []},
        },
        "training": {
            "schedule": {"kind": "fixed", "rates": [0.25], "force_anneal": 10},
            "max_epochs": 11,
            "validate_bleu": False,
        },
        "search": {"beam_size": 1, "sampling": True, "max_length_a": 0.0, "max_length_b": 60},
    }
