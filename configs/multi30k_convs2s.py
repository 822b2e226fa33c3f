"""python train.py --config=configs/multi30k_convs2s.py --config.data.dir=DIR --workdir=runs/convs2s

ConvS2S on Multi30k in the size of fairseq's fconv_iwslt_de_en: 10.1 M parameters, about those of the other models that
it is compared with (benchmarks/family.py). DIR as for multi30k_de_en.py, which is a smaller one with measured scores.

Neither score nor time was measured here.
"""


def get_config():
    return {
        "data": {
            "src": "de",
            "tgt": "en",
            "vocabulary": {"src_size": 10_000, "tgt_size": 7_000},
            "batch": {"tokens": 2000, "shapes": 12},
        },
        "model": {
            "embedding_dim": 128,
            "dropout": 0.2,
            "encoder": {"layers": [(128, 3)] * 4},
            "decoder": {"layers": [(128, 3)] * 3, "out_dim": 128},
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.999},
            "schedule": {"kind": "fixed", "rates": [2e-3], "force_anneal": 15},
            "clip": 1.0,
            "label_smoothing": 0.1,
            "max_epochs": 16,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
