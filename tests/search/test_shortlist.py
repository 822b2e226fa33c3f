"""Lexical shortlists: the search over the words of each sentence, compared with a list of all hypotheses over them."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import BOS, EOS, PAD, UNK
from convs2s_jax.models import encoder_decoder
from convs2s_jax.search import shortlist as shortlists
from convs2s_jax.search.batching import Batching
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.shortlist import Shortlist, union_size
from convs2s_jax.search.translate import translate
from tests.helpers import drills_but
from tests.search.test_fusion import LM
from tests.search.test_requests import SOURCES, fresh
from tests.search.test_translate import MODEL, SEARCH, VOCABULARY

LONGEST = 2


def lexicon(seed=0, each=2):
    """A shortlist of `each` random words for each source word, and one frequent word."""
    random = np.random.default_rng(seed)
    words = np.stack([random.choice(np.arange(4, VOCABULARY), each, replace=False) for _ in range(VOCABULARY)])
    return Shortlist(
        always=np.asarray([7], np.int32),
        words=words.reshape(-1).astype(np.int32),
        offsets=np.arange(VOCABULARY + 1) * each,
        size=VOCABULARY,
    )


LEXICON = lexicon()


@pytest.fixture(scope="module")
def params():
    return fresh(0)


@pytest.fixture
def small(monkeypatch):
    """Unions of other sizes than the small vocabulary."""
    monkeypatch.setattr(shortlists, "LEAST", 8)


def allowed(source):
    """The regular words that a translation of a source may use."""
    likely = LEXICON.words.reshape(VOCABULARY, -1)
    return {BOS, UNK, 7, *(int(w) for s in {*source.tolist(), EOS} for w in likely[s])}


@partial(jax.jit, static_argnums=1)
def forced(params, cfg, src, inputs):
    """Logits [N, T, V] after each of the targets' beginnings [N, T]."""
    memory = encoder_decoder.encode(params, cfg, src)
    return encoder_decoder.decode(
        params, cfg, memory, encoder_decoder.init_cache(params, cfg, memory, len(inputs)), inputs
    )[0]


def restricted(logits, words):
    """Log-probabilities over some words, in numpy; -inf for all others."""
    logits = np.asarray(logits, np.float64)
    found = np.full(logits.shape, -np.inf)
    part = logits[..., words] - logits[..., words].max(-1, keepdims=True)
    found[..., words] = part - np.log(np.exp(part).sum(-1, keepdims=True))
    return found


def listed(members, cfgs, weight, source):
    """Every hypothesis over the words of a source and its score, best first."""
    regular = sorted(allowed(source))
    words = sorted({*regular, PAD, EOS})
    texts = [t for n in range(LONGEST + 1) for t in itertools.product(regular, repeat=n)]
    inputs = np.full((len(texts), LONGEST + 1), PAD)
    for row, text in zip(inputs, texts, strict=True):
        row[: len(text) + 1] = [EOS, *text]
    src = jnp.asarray([[*source, EOS]], jnp.int32)
    logits = [forced(p, c, src, jnp.asarray(inputs, jnp.int32)) for p, c in zip(members, cfgs, strict=True)]
    parts = [restricted(x, words) for x in logits]
    if weight:
        *parts, said = parts
    scores = np.log(np.mean(np.exp(parts), axis=0)) + (weight * said if weight else 0)
    totals = [sum(scores[i, t, w] for t, w in enumerate((*text, EOS))) for i, text in enumerate(texts)]
    ranked = sorted(zip(totals, texts, strict=True), key=lambda pair: -pair[0] / (len(pair[1]) + 1))
    return [(text, total / (len(text) + 1)) for total, text in ranked]


@pytest.mark.parametrize("case", drills_but(["one", "fused ensemble"], kept=["one"]))
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_the_widest_search_is_the_best_of_all_hypotheses_over_the_words_of_a_sentence(params, small, case):
    """Under the exact stopping rule; the other sentences of the batch have other words."""
    members, cfgs, weight = (params,), (MODEL,), 0.0
    if case != "one":
        lm = encoder_decoder.init(jax.random.key(9), LM, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
        members, cfgs, weight = (params, fresh(1), jax.tree.map(lambda x: 3 * x, lm)), (MODEL, MODEL, LM), 0.4
    search = SearchConfig(beam_size=100, max_length_a=0.0, max_length_b=LONGEST, min_length=0, lm_weight=weight)
    sources = SOURCES[:3]
    for source, found in zip(sources, translate(members, cfgs, search, sources, shortlist=LEXICON), strict=True):
        expected = listed(members, cfgs, weight, source)[:10]
        assert [tuple(c.tokens.tolist()) for c in found.candidates[:10]] == [text for text, _ in expected]
        np.testing.assert_allclose([c.score for c in found.candidates[:10]], [s for _, s in expected], rtol=1e-4)


@pytest.mark.drill
def test_prefixes_and_phrases_may_have_words_outside_the_shortlist(params, small):
    random = np.random.default_rng(1)
    odd = [random.permutation([w for w in range(4, VOCABULARY) if w not in allowed(s)])[:2] for s in SOURCES]
    prefixes, phrases = [words[:1] for words in odd], [[words[1:]] for words in odd]
    cfg = dataclasses.replace(SEARCH, max_length_b=6)
    run = partial(translate, params, MODEL, cfg, SOURCES, batching=Batching(size=16), shortlist=LEXICON)
    found = run(prefixes=prefixes, phrases=phrases)
    for source, words, translation in zip(SOURCES, odd, found, strict=True):
        tokens = translation.best.tokens.tolist()
        assert tokens[0] == words[0]
        assert words[1] in tokens[1:]
        assert {*tokens} <= {*allowed(source), *words.tolist()}


def test_unions_have_few_sizes_with_little_to_spare():
    sizes = [union_size(count, 40_000) for count in range(1, 40_001)]
    assert all(size >= 1024 and count <= size <= max(1024, 1.25 * count) for count, size in enumerate(sizes, 1))
    assert len({*sizes}) < 40
    assert union_size(6500, 7000) == 7000
