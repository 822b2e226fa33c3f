"""convs2s train --config=fairseq_lightconv_wmt_en_de --config.data.dir=DIR --workdir=runs/light_wmt_en_de

fairseq's `lightconv_wmt_en_de`: seven and six layers of 512 channels with GLU, dynamic convolutions. This is not the
size of the paper's results, which is 1024 channels, `lightconv_wmt_en_de_big`. DIR contains {train,valid,test}.en
and .de.

Published: none that we know of for this preset; the paper's larger models have 28.9 and 29.7 BLEU (LightConv and
DynamicConv). Neither score nor time was measured here.

fairseq has a recipe only for the larger size, with a cosine schedule. Here the schedule, Adam and label smoothing are
from its IWSLT recipe, dropout is the preset's. As in fairseq, one embedding table is shared by both sides and the
softmax. With a joint vocabulary of 32,000 the model has 61,353,984 parameters.

A checkpoint is also saved every 1,000 updates, about 8 minutes at 3 TFLOP/s and 6 FLOPs per parameter and token. This
is an estimate for one GPU of 2017; on other machines set --config.training.save_every.
"""


def get_config():
    side = {"kind": "light", "convolution": "dynamic", "conv_dim": 512, "heads": 8, "glu": True, "ffn_dim": 2048}
    side |= {"input_dropout": 0.1}
    return {
        "data": {
            "src": "en",
            "tgt": "de",
            "vocabulary": {"kind": "bpe", "src_size": 32_000, "joint": True},
            # fairseq counts tokens per device, but this is the whole batch: multiply it by the number of devices
            "batch": {"tokens": 4000},
        },
        "model": {
            "embedding_dim": 512,
            "dropout": 0.1,
            "share_embeddings": True,
            "encoder": {**side, "layers": [3, 7, 15, 31, 31, 31, 31]},
            "decoder": {**side, "layers": [3, 7, 15, 31, 31, 31], "tied_output": True},
        },
        "training": {
            "save_every": 1000,
            "optimizer": {"kind": "adam", "b1": 0.9, "b2": 0.98},
            "schedule": {"kind": "inverse_sqrt", "rate": 5e-4, "warmup": 4000, "initial": 1e-7},
            "clip": 0.0,
            "label_smoothing": 0.1,
            "max_steps": 50_000,
            "keep": 10,
        },
        "search": {"beam_size": 5, "length_penalty": 0.5},
    }
