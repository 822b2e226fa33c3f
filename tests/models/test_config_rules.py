"""Values of a model's configuration that are refused: one sentence, with the place."""

import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.models.classifier import ClassifierConfig
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.training.run.config import Config

MODEL = [
    ({"dropout": 1.0}, r"dropout is 1\.0: expected a probability below 1; use 0\.0 to 0\.9"),
    ({"embedding_dim": 0}, "embedding_dim is 0: use 1 or more"),
    ({"dtype": "float16"}, r"dtype is 'float16'; did you mean 'bfloat16'\?"),
    ({"encoder": {"kind": "cnov"}}, r"encoder\.kind is 'cnov'; did you mean 'conv'\?"),
    ({"droput": 0.1}, r"droput: there is no field 'droput'; did you mean 'dropout'\?"),
    ({"execution": {"convolution": "shifts"}}, r"execution\.convolution is 'shifts'"),
    ({"execution": {"softmax_rows": 0}}, r"execution\.softmax_rows is 0: use 1 or more, or None"),
    (
        {"share_embeddings": True},
        "share_embeddings is True, but the softmax has its own kernel: set decoder.tied_output",
    ),
    ({"encoder": {"kind": "light"}, "embedding_dim": 7}, "embedding_dim is 7: sinusoidal positions are half sines"),
    ({"encoder": {"kind": "slicenet"}, "embedding_dim": 7}, "embedding_dim is 7: the timing signal is half sines"),
]
CONV = [
    ({"layers": []}, r"layers is empty: a convolutional stack has at least one layer, such as \[\(256, 3\)\]"),
    ({"layers": [(8, 0)]}, r"layers\[0\]\.width is 0: a convolution sees at least one position; use 1 or more"),
    ({"layers": [(8, 3, -1)]}, r"layers\[0\]\.skip is -1: .*use 0 for none"),
    ({"layers": [(8, 3), (8, 3, 3)]}, r"layers\[1\]\.skip is 3: only 2 earlier outputs .*use at most 2"),
    ({"layers": [(8, 3, 1, 1)]}, r"layers\[0\] is \(8, 3, 1, 1\): at most 3 values \(channels, width, skip\)"),
    ({"layers": 3}, r"layers is 3: expected a list of \(channels, width, \[skip\]\)$"),
    ({"max_positions": 3}, "max_positions is 3: two rows are reserved; use 4 or more"),
    ({"convolution": {"kind": "separabel"}}, r"convolution\.kind is 'separabel'; did you mean 'separable'\?"),
    ({"convolution": {"kind": "separable", "dilations": []}}, r"convolution\.dilations is empty: use at least one"),
    ({"convolution": {"kind": "separable", "dilations": [1, 0]}}, r"convolution\.dilations contains 0: use 1 \(no "),
    ({"convolution": {"kind": "dynamic", "heads": 0}}, r"convolution\.heads is 0: .*use 1 or more"),
    ({"convolution": {"kind": "dynamic", "heads": 3}}, r"convolution\.heads is 3, but a layer has 256 channels: "),
    ({"convolution": {"kind": "lightweight", "dilations": [1]}}, r"convolution sets 'dilations', a field of kind sep"),
]
CONV_DECODER = [
    ({"out_dim": 0}, r"\.out_dim is 0: use 1 or more"),
    ({"attention_layers": []}, r" does not read the source, but .* encoder: .* such as .*=\[1\]"),
    ({"attention_layers": [0]}, r"\.attention_layers contains 0: layers are numbered from 1 to 3"),
    ({"attention_layers": [1, 4]}, r"\.attention_layers contains 4: layers are numbered .* 1 to 3"),
    ({"attention_layers": [1, 3, 1]}, r"\.attention_layers contains 1 twice: list each layer once"),
    ({"tied_output": True, "out_dim": 64}, r"\.out_dim is 64 with tied_output: .* 256 columns; make the two equal"),
]
LIGHT = [
    ({"layers": []}, "layers is empty: set the kernel width of at least one layer"),
    ({"layers": [3, 0]}, r"layers\[1\] is 0: a convolution sees at least one position; use 1"),
    ({"heads": 5}, "heads is 5: heads split the 256 channels of conv_dim evenly"),
    ({"heads": 3, "conv_dim": 12}, "heads is 3: attention splits the 256 of embedding_dim"),
    ({"weight_dropout": 1.0}, r"weight_dropout is 1\.0: expected a probability below 1; use 0\.0 to 0\.9"),
]
RECURRENT = [
    ({"layers": 0}, "layers is 0: a recurrent stack has at least one; use 1 or more"),
    ({"layers": 2**31 - 1}, "layers is 2147483647: use at most 10000"),
    ({"max_length": 1}, "max_length is 1: a word and its end symbol need two; use 2 or more"),
    ({"residual": 1}, "residual is 1: the first of 1 layers reads words, .*; use 2 up to "),
]
RECURRENT_ENCODER = [
    ({"bidirectional": 2}, r"\.bidirectional is 2: expected a number of bidirectional layers between 0 and 1$"),
    ({"layers": 4, "residual": 2}, r"\.residual is 2: .* in layer 2, .* differ; use a later .* to 0 or 4$"),
    ({"positions": True}, " sets 'positions', a field of kind conv.*, but its kind is recurrent: .*; available: "),
]
RECURRENT_DECODER = [
    ({"wiring": "feed"}, r"\.wiring is 'feed'; did you mean 'feeding'\?"),
    ({"tied_output": True, "out_dim": 9}, r"\.out_dim is 9 with tied_output: .*; make the two equal"),
    ({"attention": "dot", "units": 9}, r"\.units is 9 with attention 'dot': .* embedding_dim 256 .*or use attention "),
]
SLICENET = [
    ({"modules": 0}, "modules is 0: use 1 or more"),
    ({"kernels": [3, 3, 0, 3]}, "kernels contains 0: use 1 or more"),
    ({"kernels": [3]}, r"kernels is \[3\]: expected 4 values"),
]


def of(side, kind, rules, dot=r"\."):
    return [({side: {"kind": kind, **values}}, f"{side}{dot}{message}") for values, message in rules]


RULES = [
    *MODEL,
    *of("encoder", "conv", CONV),
    *of("decoder", "conv", CONV_DECODER, ""),
    *of("decoder", "light", LIGHT),
    *of("encoder", "recurrent", RECURRENT),
    *of("encoder", "recurrent", RECURRENT_ENCODER, ""),
    *of("decoder", "recurrent", RECURRENT_DECODER, ""),
    *of("decoder", "slicenet", SLICENET),
]


@pytest.mark.parametrize(("values", "message"), RULES)
def test_a_wrong_value_is_refused_with_its_place(values, message):
    with pytest.raises(UserError, match=rf"^model\.{message}"):
        build(ModelConfig, values, "model")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"features": {"widths": ()}}, r"features\.widths is empty: use at least one width"),
        ({"features": {"widths": (3, 0)}}, r"features\.widths\[1\] is 0: a convolution sees at least one"),
        ({"features": {"maps": 0}}, r"features\.maps is 0: "),
        ({"features": {"max_length": 1}}, r"features\.max_length is 1: "),
        ({"features": {"kind": "kin"}}, r"features\.kind is 'kin'; did you mean 'kim'"),
        (
            {"features": {"kind": "pooled", "encoder": {"kind": "none"}}},
            r"features\.encoder\.kind is 'none', which does",
        ),
    ],
)
def test_a_wrong_value_of_a_classifier_is_refused_with_its_place(values, message):
    with pytest.raises(UserError, match=rf"^config\.{message}"):
        build(ClassifierConfig, values)


def test_fields_of_earlier_versions_are_ignored():
    assert build(ModelConfig, {"execution": {"scan_layers": 8}}).execution == ExecutionConfig()


def test_a_shared_table_needs_one_vocabulary():
    model = {"share_embeddings": True, "decoder": {"out_dim": 256, "tied_output": True}}
    data = {"src": "en", "tgt": "de"}
    with pytest.raises(UserError, match=r"each side has its own vocabulary: set data\.vocabulary\.joint to True"):
        build(Config, {"data": data, "model": model})
    assert build(Config, {"data": {**data, "vocabulary": {"joint": True}}, "model": model})


@pytest.mark.parametrize("kind", ["conv", "light", "slicenet"])
def test_longest_sentences_are_two_short_of_the_position_tables(kind):
    sides = {side: {"kind": kind, "max_positions": rows} for side, rows in (("encoder", 20), ("decoder", 30))}
    cfg = build(ModelConfig, sides)
    assert (cfg.max_source, cfg.max_target) == (18, 28)
