"""The table of small models that the laws of `test_laws.py` hold for: a new kind adds one line and gets them all.

Sizes suit E = 16. A name is what a failing test shows; several lines of one kind are for what differs inside it.
"""

from typing import Any

ENCODERS: dict[str, dict[str, Any]] = {
    "conv": {"kind": "conv", "layers": [(16, 3)] * 2},
    "gru": {"kind": "recurrent", "units": 12},
    "lstm": {"kind": "recurrent", "cell": "lstm", "layers": 3, "units": 16, "bidirectional": 1, "residual": 3},
}

DECODERS: dict[str, dict[str, Any]] = {
    "conv": {"kind": "conv", "layers": [(16, 3)] * 2, "out_dim": 16},
    "bahdanau": {"kind": "recurrent", "units": 16, "out_dim": 16},
    "gnmt": {"kind": "recurrent", "cell": "lstm", "layers": 3, "units": 16, "residual": 2, "out_dim": 16},
    "luong": {"kind": "recurrent", "cell": "lstm", "units": 16, "attention": "dot", "wiring": "current", "out_dim": 16},
    "input feeding": {
        "kind": "recurrent",
        "layers": 2,
        "units": 16,
        "attention": "general",
        "wiring": "feeding",
        "tied_output": True,
        "out_dim": 16,
    },
    "cho": {"kind": "recurrent", "units": 24, "attention": "none", "out_dim": 16},
}
