"""python train.py --config=configs/kftt_ja_en_large.py --config.data.dir=DIR --workdir=runs/kftt_large

LightConv on the Kyoto Free Translation Task, Japanese to English, for one accelerator: in bfloat16, seven encoder and
six decoder layers with kernels that grow from 3 to 31, 512 channels, as in LightConv's recipe for IWSLT (Wu et al.
2019; configs/fairseq_lightconv_iwslt_de_en.py), but with GLU, without weight decay and with a tied softmax. DIR is
written by `python benchmarks/prepare_kftt.py --kftt=RAW --output=DIR`. Batches of 16,000 target tokens, 20,000
updates: about 32 epochs. A run that was stopped continues with the same command. The last 20 checkpoints are kept,
those at the ends of epochs too; decode with the means of the kernels of ten:

    python decode.py --workdir=runs/kftt_large --input=DIR/test.ja.gz --reference=DIR/test.en.gz --output=out \\
        --checkpoint=15500,16000,16500,17000,17500,18000,18500,19000,19500,20000

A checkpoint is saved every 500 updates too: about 10 minutes at 3 TFLOP/s. The model has 38,424,620 parameters.

Published, test set, on tokenised text: LSTM 16.24, Transformer 20.4 to 21.4 BLEU. Neither score nor time was measured
here; configs/kftt_ja_en_lightconv.py, with 11.7 million parameters, has 16.29 after 7,000 updates
(2.8 epochs).
"""


def get_config():
    side = {
        "kind": "light",
        "convolution": "lightweight",
        "conv_dim": 512,
        "heads": 4,
        "ffn_dim": 1024,
        "weight_dropout": 0.1,
    }
    return {
        "data": {
            "src": "ja",
            "tgt": "en",
            "vocabulary": {"kind": "unigram", "src_size": 8000, "tgt_size": 8000, "character_coverage": 0.9995},
            "batch": {"tokens": 16_000, "shapes": 24, "max_length": 120},
        },
        "model": {
            "dtype": "bfloat16",
            "embedding_dim": 512,
            "dropout": 0.3,
            "encoder": {**side, "layers": [3, 7, 15, 31, 31, 31, 31]},
            "decoder": {**side, "layers": [3, 7, 15, 31, 31, 31], "attention_dropout": 0.1, "tied_output": True},
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.98},
            "schedule": {"kind": "inverse_sqrt", "rate": 5e-4, "warmup": 4000},
            "clip": 0.0,
            "label_smoothing": 0.1,
            "max_steps": 20_000,
            "save_every": 500,
            "keep": 20,  # 0.5 GB each
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
