"""convs2s train --config=kftt_ja_en_large --config.data.dir=DIR --workdir=runs/kftt_large

LightConv on the Kyoto Free Translation Task, Japanese to English, for one accelerator: in bfloat16, seven encoder and
six decoder layers with kernels that grow from 3 to 31, 512 channels, as in LightConv's recipe for IWSLT (Wu et al.
2019; configs/fairseq_lightconv_iwslt_de_en.py), but with GLU, without weight decay and with a tied softmax. DIR is
written by `python benchmarks/prepare_kftt.py --kftt=RAW --output=DIR`. It trains on batches of 16,000 target tokens
for 15,000 updates (23 epochs). The same command continues a run that was stopped. Decode all test sentences at once,
so that only one program is compiled:

    convs2s decode --workdir=runs/kftt_large --input=DIR/test.ja.gz --reference=DIR/test.en.gz --output=out \\
        --batch_size=1200 --batch_tokens=200000

A checkpoint is also saved every 500 updates, about 10 minutes at 3 TFLOP/s. The model has 38,424,620 parameters.

On an H200, training took 13 minutes including compilation. The average of its checkpoints 13,000 to 15,000
(--config.training.keep=10) has 21.45 BLEU on the test set, with seed 1 (docs/results.md). Published, on tokenised text:
LSTM 16.24, Transformer 20.4 to 21.4. configs/kftt_ja_en_lightconv.py, with 11.7 million parameters, has 16.29 after
7,000 updates (2.8 epochs).
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
            "batch": {"tokens": 16_000, "shapes": 12, "length_multiple": 8, "max_length": 120},
        },
        "model": {
            "dtype": "bfloat16",
            "embedding_dim": 512,
            "dropout": 0.2,
            "encoder": {**side, "layers": [3, 7, 15, 31, 31, 31, 31]},
            "decoder": {**side, "layers": [3, 7, 15, 31, 31, 31], "attention_dropout": 0.1, "tied_output": True},
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.98},
            "schedule": {"kind": "cosine", "rate": 8e-4, "warmup": 2500, "steps": 15_000},
            "clip": 0.0,
            "label_smoothing": 0.1,
            "max_steps": 15_000,
            "validate_every": 2500,
            "save_every": 500,
            "validate_bleu": False,
            "bleu_tokenize": "none",
        },
        "search": {"beam_size": 5},
    }
