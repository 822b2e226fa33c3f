"""Calls of the search that would give plausible but wrong results: each is refused in one sentence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.search.batching import Batching
from convs2s_jax.search.beam import beam_search
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.generate import force
from convs2s_jax.search.requests import Sizes, request
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
    (asked(search=MODEL), "search is a ModelConfig: expected SearchConfig$"),
    (asked(cfg=SEARCH), "cfg is a SearchConfig: expected ModelConfig$"),
    # ids
    (asked(prefixes=[[22], [23]]), "sentence 1: its prefix contains id 23: the vocabulary has ids from 0 to 22$"),
    (
        asked(params=FAST, phrases=[[[6]], [[5], [PAD]]]),
        "sentence 1: a phrase contains id 1, which is <pad>: " + NO_END,
    ),
    (asked(prefixes=[[EOS, 5], []]), "sentence 0: its prefix contains id 2, which is </s>: " + NO_END),
    (asked(prefixes=[[], [5, PAD, 6]]), "sentence 1: its prefix contains id 1, which is <pad>: " + NO_END),
    (asked([[0, 5]]), "sentence 0: its source contains id 0, which is <s>: it never occurs in text$"),
    *(
        (call, f"sentence 2: its {side} {message}")
        for given, message in (
            ([5, EOS], "contains id 2, which is </s>: " + NO_END),
            ([5, PAD], "contains id 1, which is <pad>: " + NO_END),
            ([5, 23], "contains id 23: the vocabulary has ids from 0 to 22$"),
            ([-1], "contains id -1: the vocabulary has ids from 0 to 22$"),
            ([5.0], r"is \[5.0\]: expected a list of token ids, which are integers$"),
            (5, "is 5: expected a list of token ids, which are integers$"),
        )
        for side, call in (
            ("source", asked([[5], [], given])),
            ("source", scored([[5], [], given], [[]] * 3)),
            ("target", scored([[]] * 3, [[5], [], given])),
        )
    ),
    # a missing level of lists
    *(
        (call(**given), message)
        for given, message in (
            ({"prefixes": [[5], 7]}, "sentence 1: its prefix is 7: expected a list of token ids"),
            ({"phrases": [[], [7, 8]]}, "sentence 1: a phrase is 7: expected a list of token ids"),
            ({"phrases": [[], 7]}, "sentence 1: its phrases are 7: expected a list of phrases$"),
            ({"phrases": [[], np.asarray(7)]}, "sentence 1: its phrases are .*7.*: expected a list of phrases$"),
        )
        for call in (asked, lambda **given: lambda: request([5, 5], **given))
    ),
    # what no translation can hold
    (
        asked(prefixes=[[], [4, 4]], phrases=[[], [[7, 8, 9], [4]]]),
        "sentence 1: prefix and phrases have 6 tokens, but its translation has at most 4",
    ),
    (asked(prefixes=[[4]]), "got 2 sources, 1 prefixes"),
    (asked([[]], prefixes=[[5]]), "sentence 0: its source is empty, so its translation is empty too: leave out"),
    (asked([[]], phrases=[[[5]]]), "sentence 0: its source is empty, so its translation is empty too: leave out"),
    (scored([[]], [[], []]), "got 1 sources and 2 targets"),
    # options that do not fit
    (asked(nbest=0), "nbest is 0: use 1 or more, or None for all that the search finds"),
    (asked(nbest=2.0), "nbest is 2.0: use 1 or more, or None for all that the search finds"),
    (asked(search=DRAWN), "sampling needs a random key, but key is None"),
    (asked(search=DRAWN, shortlist=LEXICON), "shortlist with sampling: samples are drawn from the whole vocabulary"),
    (
        asked(search=DRAWN, key=jax.random.key(0), batching=Batching(min_axes=Sizes(0, 1, 1))),
        "batching.min_axes has room for 1 phrases, which work with plain",
    ),
    # models and shortlists of other vocabularies
    *(
        (
            call(params=members, cfg=(MODEL, MODEL)),
            "sentence 0: its source contains id 7: the vocabulary has ids",
        )
        for members in ((PARAMS, SMALL), (SMALL, PARAMS))
        for call in (lambda **models: asked([[7]], **models), lambda **models: scored([[7]], **models))
    ),
    *(
        (call(params=(PARAMS, SMALL), cfg=(MODEL, MODEL)), r"the models have \[23, 7\] target words: an ensemble needs")
        for call in (asked, scored)
    ),
    (asked(shortlist=full_shortlist(V + 1)), f"the shortlist is for {V + 1} target words, but the models have {V}: "),
    (asked(shortlist=SHORT), f"the shortlist is for {V - 1} source words, but a model has {V}: "),
    # language models
    (asked(search=FUSED), r"lm_weight is 0\.5, but there is only one model: pass the language model as"),
    (
        asked(params=((), ()), cfg=(LM, MODEL), search=FUSED),
        r"lm_weight is 0\.5, but the last model reads a source: pass a language model",
    ),
    *(
        (call(params=((), ()), cfg=(MODEL, LM)), "lm_weight is 0, but one of the models is a language model")
        for call in (asked, scored)
    ),
    (
        lambda: beam_search(
            lambda _memory, cache, last: (jnp.zeros((len(last), 5)), cache),
            SearchConfig(beam_size=2, lm_weight=0.5),
            memory=(),
            cache=jnp.zeros(2),
            request=request([3]),
            limit=4,
        ),
        "lm_weight is above 0, but the step returns no logits of a language model",
    ),
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
