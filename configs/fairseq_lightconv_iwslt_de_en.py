"""convs2s train --config=fairseq_lightconv_iwslt_de_en --config.data.dir=DIR --workdir=runs/light_iwslt

fairseq's `lightconv_iwslt_de_en` for IWSLT'14 German-English: seven and six layers of 512 channels without GLU. Its
convolutions are dynamic by default; for LightConv add `--config.model.encoder.convolution=lightweight
--config.model.decoder.convolution=lightweight`. DIR contains {train,valid,test}.de and .en, tokenised and lowercased
as by fairseq's prepare-iwslt14.sh, but not yet split into sub-words.

Published (Wu et al. 2019): 34.8 tokenised BLEU for LightConv, 35.2 for DynamicConv, averaging the parameters of the
last ten checkpoints (`convs2s decode --checkpoint`), beam 4. Neither score nor time was measured here.

Dropout rates, Adam, weight decay, the schedule and 50,000 updates are fairseq's recipe.
With these vocabularies the model has 38,705,664 parameters.
"""


def get_config():
    side = {"kind": "light", "convolution": "dynamic", "conv_dim": 512, "heads": 4, "glu": False, "ffn_dim": 1024}
    side |= {"weight_dropout": 0.1}
    return {
        "data": {
            "src": "de",
            "tgt": "en",
            "vocabulary": {"kind": "bpe", "src_size": 9336, "tgt_size": 6408},
            # fairseq counts tokens per device, but this is the whole batch: multiply it by the number of devices
            "batch": {"tokens": 4000},
        },
        "model": {
            "embedding_dim": 512,
            "dropout": 0.3,
            "encoder": {**side, "layers": [3, 7, 15, 31, 31, 31, 31]},
            "decoder": {**side, "layers": [3, 7, 15, 31, 31, 31], "attention_dropout": 0.1},
        },
        "training": {
            "optimizer": {"kind": "adam", "b1": 0.9, "b2": 0.98, "weight_decay": 1e-4},
            "schedule": {"kind": "inverse_sqrt", "rate": 5e-4, "warmup": 4000, "initial": 1e-7},
            "clip": 0.0,
            "label_smoothing": 0.1,
            "max_steps": 50_000,
            "bleu_tokenize": "none",
            "keep": 10,
        },
        "search": {"beam_size": 4, "length_penalty": 1.0},
    }
