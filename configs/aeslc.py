"""convs2s train --config=aeslc --config.data.dir=DIR --workdir=runs/aeslc

Subject lines of e-mails (AESLC, Zhang and Tetreault 2019). DIR contains {train,valid,test}.body and .subject, one
example per line, plain or with .gz; test.ann0 to test.ann2 are three more human-written subjects. To score against all:

convs2s decode --workdir=runs/aeslc --input=DIR/test.body.gz --output=out --metrics=rouge \\
    --reference=DIR/test.subject.gz,DIR/test.ann0.gz,DIR/test.ann1.gz,DIR/test.ann2.gz

This requires pip install rouge-score. Half the bodies have at least 74 words, the longest 3,136. Those of more than 400
tokens (1,089 of 14,436 for training) are truncated, in training by data.batch.cut_source, in decoding by max_positions.

Published, against test.subject: ROUGE-1/2/L 23.67 / 10.29 / 23.44 (extractor and abstractor), about 15 / 7.4 / 14.9 (a
Transformer from scratch).

Measured with seed 1, 22 November 2026, 85 minutes on one core of an AMD EPYC (AVX2) with other work running most of the
time, 4.1 M parameters, beam 5: against test.subject 11.51 / 5.20 / 11.42 with the best parameters by validation loss
(epoch 8, perplexity 185), 13.21 / 6.25 / 13.12 with the last ones (--checkpoint=8832, perplexity 187); best of all four
subjects 16.77 / 6.63 / 16.60 and 19.43 / 8.13 / 19.22. After a few epochs the loss no longer predicts which is better.
"""


def get_config():
    return {
        "data": {
            "src": "body",
            "tgt": "subject",
            "vocabulary": {"src_size": 8000, "joint": True},
            "batch": {"tokens": 4000, "max_length": 400, "cut_source": True},
        },
        "model": {
            "embedding_dim": 128,
            "dropout": 0.3,
            "encoder": {"layers": [(128, 3)] * 4, "max_positions": 402},
            "decoder": {"layers": [(128, 3)] * 3, "out_dim": 128},
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.999},
            "schedule": {"kind": "fixed", "rates": [2e-3], "force_anneal": 11},
            "clip": 1.0,
            "label_smoothing": 0.1,
            "max_epochs": 12,
            "metrics": ("rouge", "exact"),
        },
        "search": {"beam_size": 5, "length_penalty": 1.0, "max_length_a": 0.0, "max_length_b": 30},
    }
