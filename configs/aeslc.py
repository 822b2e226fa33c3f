"""python train.py --config=configs/aeslc.py --config.data.dir=DIR --workdir=runs/aeslc

Subject lines of e-mails (AESLC, Zhang and Tetreault 2019). DIR holds {train,valid,test}.body and .subject, a line each,
plain or with .gz; test.ann0 to test.ann2 are three more subjects that people wrote. Scoring against all of them:

python decode.py --workdir=runs/aeslc --input=DIR/test.body.gz --output=out --metrics=rouge \\
    --reference=DIR/test.subject.gz,DIR/test.ann0.gz,DIR/test.ann1.gz,DIR/test.ann2.gz

Needs pip install rouge-score. Half the bodies have 74 words or more, the longest 3,136: those of more than 400 tokens
(1,089 of 14,436 to train on) are cut there: in training by data.batch.cut_source, in decoding by max_positions.

Published, against test.subject: ROUGE-1/2/L 23.67 / 10.29 / 23.44 (extractor and abstractor), about 15 / 7.4 / 14.9 (a
Transformer from scratch). Neither score nor time was measured here.
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
            "embedding_dim": 256,
            "dropout": 0.3,
            "encoder": {"layers": [(256, 3)] * 6, "max_positions": 402},
            "decoder": {"layers": [(256, 3)] * 3, "out_dim": 256},
        },
        "training": {
            "optimizer": {"kind": "nesterov", "momentum": 0.99},
            "schedule": {"kind": "plateau", "rate": 0.25},
            "clip": 0.1,
            "label_smoothing": 0.1,
            "max_epochs": 30,
            "metrics": ("rouge", "exact"),
        },
        "search": {"beam_size": 5, "length_penalty": 1.0, "max_length_a": 0.0, "max_length_b": 30},
    }
