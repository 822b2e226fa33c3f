"""convs2s train --config=kftt_ja_en_lightconv --config.data.dir=DIR --workdir=runs/kftt_lightconv

LightConv (Wu et al. 2019) on the Kyoto Free Translation Task, Japanese to English, to compare with
configs/kftt_ja_en.py: the same text, sub-words and batches, half the updates, 256 channels, five encoder and four
decoder layers with kernels that grow from 3 to 31. DIR is written by
`python benchmarks/prepare_kftt.py --kftt=RAW --output=DIR`.

Published, test set, on tokenised text: LSTM 16.24, Transformer 20.4 to 21.4 BLEU. Measured: 16.29 cased after 7,000
updates with a schedule of that length (seed 1, docs/results.md). The 10,000 updates below were not run to the end.
"""


def get_config():
    side = {
        "kind": "light",
        "convolution": "lightweight",
        "conv_dim": 256,
        "heads": 4,
        "ffn_dim": 1024,
        "weight_dropout": 0.1,
    }
    return {
        "data": {
            "src": "ja",
            "tgt": "en",
            "vocabulary": {"kind": "unigram", "src_size": 8000, "tgt_size": 8000, "character_coverage": 0.9995},
            "batch": {"tokens": 4000, "shapes": 24, "max_length": 120},
        },
        "model": {
            "embedding_dim": 256,
            "dropout": 0.1,
            "encoder": {**side, "layers": [3, 7, 15, 31, 31]},
            "decoder": {**side, "layers": [3, 7, 15, 31], "attention_dropout": 0.1, "tied_output": True},
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.98},
            "schedule": {"kind": "cosine", "rate": 1e-3, "warmup": 2000, "steps": 10_000},
            "clip": 0.0,
            "label_smoothing": 0.1,
            "max_steps": 10_000,
            "save_every": 500,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
