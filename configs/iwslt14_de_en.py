"""convs2s train --config=iwslt14_de_en --config.data.dir=DIR --workdir=runs/iwslt14_de_en

IWSLT'14 German-English by fairseq's recipe with label smoothing: 4 and 3 layers of 256 channels. DIR contains
{train,valid,test}.de and .en, tokenised and lowercased as by fairseq's prepare-iwslt14.sh, but not yet split into
sub-words.

Published: 31.7 to 32.2 tokenised BLEU for models of this kind, 32.84 to 32.93 with sequence-level training, which is
not done here. Neither score nor time was measured here.

Dropout 0.2, batches of 4000 tokens, learning rate 0.25 annealed from epoch 200 on, Nesterov momentum 0.99, clipping at
0.1 and label smoothing 0.1 are from the recipe. Training ends five epochs after annealing starts, as in fairseq's
larger recipes; fairseq itself continues until it is stopped. With these vocabularies the model has 9,628,176
parameters.
"""


def get_config():
    return {
        "data": {
            "src": "de",
            "tgt": "en",
            "vocabulary": {"kind": "bpe", "src_size": 9336, "tgt_size": 6408},
            # fairseq counts tokens per device, but this is the whole batch: multiply it by the number of devices
            "batch": {"tokens": 4000},
        },
        "model": {
            "embedding_dim": 256,
            "dropout": 0.2,
            "encoder": {"layers": [(256, 3)] * 4},
            "decoder": {"layers": [(256, 3)] * 3, "out_dim": 256},
        },
        "training": {
            "optimizer": {"kind": "nesterov", "momentum": 0.99},
            "schedule": {"kind": "fixed", "rates": [0.25], "force_anneal": 200, "shrink": 0.1},
            "clip": 0.1,
            "label_smoothing": 0.1,
            "max_epochs": 205,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5, "length_penalty": 1.0},
    }
