"""Calls of the search that would give plausible but wrong results: each is refused in one sentence."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.search.generate import force
from convs2s_jax.search.shortlist import full_shortlist
from convs2s_jax.search.translate import score, translate
from tests.search.test_fusion import LM
from tests.search.test_shortlist import LEXICON
from tests.search.test_translate import MODEL, SEARCH, VOCABULARY

V = VOCABULARY
PARAMS = jax.eval_shape(
    lambda key: encoder_decoder.init(key, MODEL, source_vocabulary=V, target_vocabulary=V), jax.random.key(0)
)
SMALL = jax.eval_shape(
    lambda key: encoder_decoder.init(key, MODEL, source_vocabulary=7, target_vocabulary=7), jax.random.key(0)
)
"""Shapes in place of parameters: a call that is refused reads none."""
SAYS = jax.eval_shape(
    lambda key: encoder_decoder.init(key, LM, source_vocabulary=V, target_vocabulary=V), jax.random.key(0)
)
FAST = jax.eval_shape(lambda params: conversion.precompute(params, MODEL), PARAMS)
FUSED = dataclasses.replace(SEARCH, lm_weight=0.5)
DRAWN = dataclasses.replace(SEARCH, sampling=True)
SHORT = dataclasses.replace(LEXICON, offsets=LEXICON.offsets[:-1])
NO_END = "pass ids without the end symbol and padding$"


def asked(sources=((5,), (6,)), params=PARAMS, cfg=MODEL, search=SEARCH, **more):
    return lambda: translate(params, cfg, search, sources, **more)


def scored(sources=((5,),), targets=((5,),), params=PARAMS, cfg=MODEL, search=SEARCH):
    return lambda: score(params, cfg, search, sources, targets)


CASES = [
    (asked(search=MODEL, nbest=None), "search is a ModelConfig: expected SearchConfig$"),
    (asked(cfg=SEARCH), "cfg is a SearchConfig: expected ModelConfig$"),
    # ids
    (asked(prefixes=[[22], [23]]), "sentence 1: its prefix contains id 23: the vocabulary has ids from 0 to 22$"),
    (
        asked(params=FAST, phrases=[[[6]], [[5], [PAD]]]),
        "sentence 1: a phrase contains id 1, which is <pad>: " + NO_END,
    ),
    (asked(prefixes=[[], [5, PAD, 6]]), "sentence 1: its prefix contains id 1, which is <pad>: " + NO_END),
    (asked([[0, 5]]), "sentence 0: its source contains id 0, which is <s>: it never occurs in text$"),
    (scored([[5], [], [5, EOS]], [[]] * 3), "sentence 2: its source contains id 2, which is </s>: " + NO_END),
    (scored([[]] * 3, [[5], [], [-1]]), "sentence 2: its target contains id -1: the vocabulary has ids from 0 to 22$"),
    (asked([[5], [5.0]]), r"sentence 1: its source is \[5.0\]: expected a list of token ids, which are integers$"),
    # what no translation can hold
    (
        asked(prefixes=[[], [4, 4]], phrases=[[], [[7, 8, 9], [4]]]),
        "sentence 1: prefix and phrases have 6 tokens, but its translation has at most 4",
    ),
    (asked(prefixes=[[4]]), "got 1 prefixes and 2 lists of phrases for 2 sentences: pass one each"),
    (asked([[]], phrases=[[[5]]]), "sentence 0: prefix and phrases .* and none if its source is empty$"),
    (scored([[]], [[], []]), "got 1 sources and 2 targets"),
    # options that do not fit
    (asked(nbest=0), "nbest is 0: use 1 to 3, because a search returns at most beam_size hypotheses"),
    (asked(key=jax.random.key(0)), "key without sampling: this search draws no samples; leave it out"),
    (asked(search=DRAWN), "sampling needs a random key, but key is None"),
    (asked(search=DRAWN, shortlist=LEXICON), "shortlist with sampling: samples are drawn from the whole vocabulary"),
    # models and shortlists of other vocabularies
    (asked([[7]], params=(PARAMS, SMALL), cfg=(MODEL, MODEL)), "sentence 0: its source contains id 7: the vocabulary"),
    (scored(params=(PARAMS, SMALL), cfg=(MODEL, MODEL)), r"the models have \[23, 7\] target words: an ensemble needs"),
    (
        asked(shortlist=full_shortlist(V + 1)),
        f"the shortlist is for .* {V + 1} target words, but the models have .*{V}:",
    ),
    (asked(shortlist=SHORT), f"the shortlist is for {V - 1} source and {V} target words, but the models have"),
    # language models
    (asked(search=FUSED), r"lm_weight is above 0: pass the language model, which reads no source, after the other"),
    (asked(params=(SAYS, PARAMS), cfg=(LM, MODEL), search=FUSED), "lm_weight is above 0: pass the language model"),
    (scored(params=(PARAMS, SAYS), cfg=(MODEL, LM)), "lm_weight is 0, but one of the models is a language model"),
    # arrays of force
    (
        lambda: force(PARAMS, MODEL, SEARCH, jnp.array([[5, 2]]), jnp.array([[5, 2]] * 2)),
        "src has 1 rows and tgt has 2: each row is a sentence pair$",
    ),
    (
        lambda: force([PARAMS, PARAMS], MODEL, SEARCH, jnp.array([[5, 2]]), jnp.array([[5, 2]])),
        "params has 2 entries and cfg 1: pass one config",
    ),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[message[:60] for _, message in CASES])
def test_a_wrong_call_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        call()
