"""The table of small models that the laws (`test_*laws.py`) hold for: a new kind adds one line to be covered.

Sizes suit E = 32. A failing test shows the name. A kind with several variants has several lines. Kernels of width 8 and
more are computed as matrix products, narrower ones as shifts (`nn/depthwise.py`): both are covered.
"""

import itertools
from typing import Any

LIGHT = {"kind": "light", "conv_dim": 32, "ffn_dim": 32}
OTHERWISE = {"norm_before": True, "glu": False, "positions": "learned"}

CONV: dict[str, dict[str, Any]] = {
    "conv": {"kind": "conv", "layers": [(32, 3)] * 2},
    "separable": {"kind": "conv", "layers": [(32, 3)] * 2, "convolution": {"kind": "separable", "dilations": [1, 2]}},
    "lightweight": {"kind": "conv", "layers": [(32, 9)], "convolution": {"kind": "lightweight", "heads": 4}},
    "dynamic": {"kind": "conv", "layers": [(32, 9)], "convolution": {"kind": "dynamic", "heads": 4}},
}
OTHERS: dict[str, dict[str, Any]] = {
    "lightconv": {**LIGHT, "layers": [3, 9], "convolution": "lightweight"},
    "dynamicconv": {**LIGHT, "layers": [9], "convolution": "dynamic", **OTHERWISE},
    "slicenet": {"kind": "slicenet", "modules": 1, "kernels": [3, 3, 5, 5], "dilations": [1, 2, 1, 1]},
}
RECURRENT: dict[str, dict[str, Any]] = {
    "bahdanau": {"units": 32},
    "gnmt": {"cell": "lstm", "layers": 2, "units": 24, "residual": 2},
    "luong": {"cell": "lstm", "units": 32, "attention": "dot", "wiring": "current"},
    "feeding": {"layers": 2, "units": 32, "attention": "general", "wiring": "feeding"},
    "cho": {"units": 32, "attention": "none", "tied_output": True, "out_dim": 32},
}

ENCODERS: dict[str, dict[str, Any]] = {
    **CONV,
    **OTHERS,
    "gru": {"kind": "recurrent", "units": 24},
    "lstm": {"kind": "recurrent", "cell": "lstm", "layers": 2, "units": 24, "bidirectional": 0, "residual": 2},
}
DECODERS: dict[str, dict[str, Any]] = {
    **{name: {**values, "out_dim": 16} for name, values in CONV.items()},
    **OTHERS,
    **{name: {"kind": "recurrent", "out_dim": 24, **values} for name, values in RECURRENT.items()},
}
LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "language": {"kind": "conv", "layers": [(32, 3)] * 2, "out_dim": 16, "attention_layers": []},
}
"""Decoders without a source: language models."""


def pair(encoder: str, decoder: str) -> dict[str, dict[str, Any]]:
    """Encoder and decoder fields by their names in the tables; "none" is the encoder of language models. Copies."""
    if encoder == "none":
        return {"encoder": {"kind": "none"}, "decoder": dict(LANGUAGE_MODELS[decoder])}
    return {"encoder": dict(ENCODERS[encoder]), "decoder": dict(DECODERS[decoder])}


def together() -> list[tuple[str, str]]:
    """The fewest pairs that cover each encoder and each decoder at least once, and the language models."""
    count = max(len(ENCODERS), len(DECODERS))
    pairs = itertools.islice(zip(itertools.cycle(ENCODERS), itertools.cycle(DECODERS), strict=False), count)
    return [*pairs, *(("none", name) for name in LANGUAGE_MODELS)]
