"""convs2s train --config=your_text --config.data.dir=DIR --workdir=runs/mine

Your own raw parallel text, without tokenising or lowercasing. DIR contains train.de and train.en (plain or .gz), one
sentence per line; choose other suffixes with --config.data.src=fr --config.data.tgt=it. valid.de and valid.en are used
if they exist; otherwise a fiftieth of the training lines is held out. Then

convs2s decode --workdir=runs/mine --input=FILE --output=FILE --reference=FILE

translates a file and prints BLEU (sacreBLEU's tokenizer by script, mostly 13a), chrF and exact match.

The settings suit 10,000 to 200,000 pairs: about 4 million parameters, Adam, at most 30 epochs, fewer if the validation
loss stops falling. For less text use --config.data.vocabulary.src_size=4000 --config.data.vocabulary.tgt_size=4000
--config.model.dropout=0.3. For more, use the layers of configs/iwslt14_de_en.py. No score was measured, since it
depends on your text.
"""


def get_config():
    return {
        "data": {
            "src": "de",
            "tgt": "en",
            "hold_out": 0.02,
            "vocabulary": {"src_size": 8000, "tgt_size": 8000},
            "batch": {"tokens": 4000, "max_length": 250},
        },
        "model": {
            "embedding_dim": 128,
            "dropout": 0.2,
            "encoder": {"layers": [(128, 3)] * 4},
            "decoder": {"layers": [(128, 3)] * 3, "out_dim": 128},
        },
        "training": {
            "optimizer": {"kind": "adam", "b2": 0.999},
            "schedule": {"kind": "plateau", "rate": 2e-3, "shrink": 0.5, "minimum": 1e-4},
            "clip": 1.0,
            "label_smoothing": 0.1,
            "max_epochs": 30,
        },
        "search": {"beam_size": 5},
    }
