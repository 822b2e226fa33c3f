"""Data settings: rules of the records, and how they read from a configuration file."""

import pytest

from convs2s_jax.core import config
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.config import DataConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tgt": ""}, "data.tgt is missing: set it to the suffix of its files"),
        ({"tgt": "de"}, "data.src and tgt are both 'de': give the two sides different names"),
        ({"corpus": "file"}, "data.corpus is 'file'; did you mean 'files'"),
        ({"corpus": "tfds"}, "data.corpus is 'tfds': use .* 'tfds:NAME' or 'hf:NAME' with a name"),
        ({"corpus": "cldr:en"}, "data.corpus is 'cldr:en': use 'files', 'tsv', 'cldr'"),
        ({"vocabulary": {"src_size": 4}}, "data.vocabulary.src_size is 4: four entries are special .* 5 or more"),
        (
            {"vocabulary": {"symbols": ["<2en>", "a b"]}},
            "data.vocabulary.symbols contains 'a b': use text without white",
        ),
        (
            {"vocabulary": {"symbols": ["</s>"]}},
            "data.vocabulary.symbols contains '</s>': .*, but not <s>, <pad>, </s>, ",
        ),
        ({"vocabulary": {"symbols": ["x", "x"]}}, "data.vocabulary.symbols contains 'x' twice; list it once"),
        ({"vocabulary": {"sample": 0}}, "data.vocabulary.sample is 0: .* requires a line; use 1 or more"),
        ({"vocabulary": {"min_count": 0}}, "data.vocabulary.min_count is 0: .* use 1 or more"),
        (
            {"vocabulary": {"character_coverage": 0.97}},
            "data.vocabulary.character_coverage is 0.97: .* between 0.98 and 1",
        ),
        ({"vocabulary": {"normalization": "nfk"}}, "data.vocabulary.normalization is 'nfk'; did you mean 'nfkc'"),
        ({"vocabulary": {"kind": "bqe"}}, "data.vocabulary.kind is 'bqe'; did you mean 'bpe'"),
        ({"batch": {"tokens": 1}}, "data.batch.tokens is 1: .*; use a number between 2 and 2147483647"),
        ({"batch": {"shapes": 257}}, "data.batch.shapes is 257: .*; use a number between 1 and 256"),
        ({"batch": {"row_multiple": 0}}, "data.batch.row_multiple is 0: .*; use a number between 1 and 1024"),
        *(
            (
                {"batch": {"tokens": a, "accumulate": b}},
                f"data.batch.tokens is {a} and accumulate is {b}: .* 2147483647$",
            )
            for a, b in ((2**31 - 1, 2), (2**25, 2**6))  # counted in an int32
        ),
    ],
)
def test_nonsense_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        config.build(DataConfig, {"src": "de", "tgt": "en", **values}, "config.data")
