"""convs2s train --config=fairseq_fconv_iwslt_de_en --config.data.dir=DIR --workdir=runs/iwslt_de_en

fairseq's `fconv_iwslt_de_en`: encoder of 4 and decoder of 3 layers of 256 channels, trained with its shorter recipe for
IWSLT'14 German-English, without label smoothing; configs/iwslt14_de_en.py is the recipe with label smoothing. DIR
contains {train,valid,test}.de and .en, tokenised and lowercased as by fairseq's prepare-iwslt14.sh, but not yet split
into sub-words.

Published: 31.7 to 32.2 tokenised BLEU for models of this kind. Neither score nor time was measured here.

Dropout 0.2, batches of 4000 tokens, learning rate 0.25 and clipping at 0.1 are from the recipe. The learning rate is
annealed as in the paper. With these vocabularies the model has 9,628,176 parameters.
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
            "schedule": {"kind": "plateau", "rate": 0.25, "shrink": 0.1, "minimum": 1e-4},
            "clip": 0.1,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5, "length_penalty": 1.0},
    }
