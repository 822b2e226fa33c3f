"""convs2s train --config=paper_gigaword --config.data.dir=DIR --workdir=runs/gigaword

Headlines of English Gigaword with the summarization model of Gehring et al. 2017: 6 layers of 256 channels on both
sides, 30,000 words. DIR contains {train,valid,test}.article and .title.

Published: ROUGE-1/2/L 35.88 / 17.48 / 33.29 on Gigaword, 30.44 / 10.84 / 26.90 on DUC-2004 (table 6 of the paper).
Neither score nor time was measured here. ROUGE requires pip install -e '.[rouge]':

convs2s decode --workdir=runs/gigaword --input=test.article --reference=test.title --output=titles --metrics=rouge

Sizes, optimiser, annealing, clipping, loss (no label smoothing) and beam are those of section 4 of the paper. The
kernel width 3 and the dropout rate 0.2 are our choice; fairseq's smallest preset and its recipe use them.

A checkpoint is also saved every 5,000 updates, about 10 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This
is an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    return {
        "data": {
            "src": "article",
            "tgt": "title",
            "vocabulary": {"kind": "words", "src_size": 30_000, "tgt_size": 30_000},
            # the paper's 64 sentences at about 30 words per sentence: 64 * 30 plus some padding
            "batch": {"tokens": 2000},
        },
        "model": {
            "embedding_dim": 256,
            "dropout": 0.2,
            "encoder": {"layers": [(256, 3)] * 6},
            "decoder": {"layers": [(256, 3)] * 6, "out_dim": 256},
        },
        "training": {
            "save_every": 5000,
            "optimizer": {"kind": "nesterov", "momentum": 0.99},
            "schedule": {"kind": "plateau", "rate": 0.25, "shrink": 0.1, "minimum": 1e-4},
            "clip": 0.1,
            "validate_bleu": False,
            "metrics": ("rouge",),
        },
        "search": {"beam_size": 5, "length_penalty": 1.0},
    }
