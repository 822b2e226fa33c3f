"""Laws that every kind of decoder obeys; `kinds.py` lists what they run over."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.kinds import Memory
from convs2s_jax.nn.keys import row_keys
from tests.helpers import array, close, drills_but, same
from tests.models.kinds import DECODERS, LANGUAGE_MODELS
from tests.models.laws import TARGET, E, S, config, parameters

every_kind = pytest.mark.parametrize(
    "decoder", drills_but([*DECODERS, *LANGUAGE_MODELS], kept=["conv", "lightconv", "bahdanau", *LANGUAGE_MODELS])
)
"""A line of most kinds, the others as drills: for laws on which the variants of a kind should not differ."""
one_kind = pytest.mark.parametrize("decoder", drills_but([*DECODERS, *LANGUAGE_MODELS], kept=["conv"]))
two_kinds = pytest.mark.parametrize("decoder", drills_but([*DECODERS, *LANGUAGE_MODELS], kept=["conv", "bahdanau"]))
"""One or two lines, the others as drills: for laws that take the longest."""

TOKENS = np.array([[EOS, 5, 6, 7, 8, 9, 10], [EOS, 11, 12, 5, PAD, PAD, PAD]], np.int32)
LENGTHS = [S, 2]


def memory(width=S, sentences=2, dtype=jnp.float32):
    """Memory of two sentences; values at padding are large, so that reading them changes the result."""
    rng = np.random.default_rng(1)
    keys, values = rng.normal(size=(2, sentences, S, E))
    more = ((0, 0), (0, width - S), (0, 0))
    keys, values = (array(np.pad(x, more, constant_values=50.0), dtype) for x in (keys, values))
    mask = jnp.asarray(np.arange(width)[None] < np.asarray(LENGTHS)[:sentences, None])
    return Memory(keys=keys, values=values, mask=mask, summary=array(rng.normal(size=(sentences, E)), dtype))


prepare, precompute = (jax.jit(function, static_argnums=1) for function in (model.prepare, conversion.precompute))


@partial(jax.jit, static_argnums=1)
def advance(params, cfg, memory, cache, tokens, key=None):
    return model.advance(params, cfg, memory, cache, tokens, key=key)


@partial(jax.jit, static_argnums=1)
def advance_in_layers(params, cfg, memory, cache, tokens):
    return model.advance_in_layers(params, cfg, memory, cache, tokens)


@partial(jax.jit, static_argnums=(1, 3))
def begin(params, cfg, memory, rows=2):
    return model.init_cache(params, cfg, memory, rows)


def read(params, cfg, memory, tokens, key=None):
    return advance(params, cfg, memory, begin(params, cfg, memory, len(tokens)), tokens, key)


@pytest.mark.parametrize("cuts", drills_but([[1] * 7, [3, 1, 3]], kept=[[3, 1, 3]]), ids=str)
@every_kind
def test_any_cut_of_the_target_gives_the_same_features_attentions_and_cache(decoder, cuts):
    """The attention of each layer, with and without `precompute`."""
    cfg = config(decoder=decoder)
    params, source = parameters(cfg), memory()
    whole = advance_in_layers(params, cfg, source, begin(params, cfg, source), TOKENS)
    precomputed = precompute(params, cfg)
    for p, m in ((params, source), (precomputed, prepare(precomputed, cfg, source))):
        cache, at, made = begin(p, cfg, m), 0, []
        for cut in cuts:
            *part, cache = advance_in_layers(p, cfg, m, cache, TOKENS[:, at : at + cut])
            made.append(tuple(part))
            at += cut
        found = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *made)
        if p is params:
            same((*found, cache), whole)
        else:  # other sums round relative to their largest terms: 2.4e-6 of them with jax 0.12 on a processor with AMX
            close(found, whole[:2], 5e-6)


@every_kind
def test_a_cache_has_rows_first_and_keeps_its_shapes_and_types(decoder):
    """A loop over steps (`lax.while_loop`) requires this, in bfloat16 too."""
    for dtype in ("float32", "bfloat16"):
        cfg = config(decoder=decoder, dtype=dtype)
        params = precompute(parameters(cfg), cfg)
        source = prepare(params, cfg, memory(dtype=dtype))
        cache = begin(params, cfg, source, 6)
        after = jax.eval_shape(
            lambda c, p=params, m=source, k=cfg: model.advance(p, k, m, c, TOKENS[:1].repeat(6, 0))[2], cache
        )
        assert jax.tree.map(lambda x: (x.shape, x.dtype), cache) == jax.tree.map(lambda x: (x.shape, x.dtype), after)
        assert {leaf.shape[0] for leaf in jax.tree.leaves(cache)} == {6}
        assert {leaf.shape[0] for leaf in jax.tree.leaves(source)} == {2}


@two_kinds
def test_hypotheses_share_the_memory_of_their_sentence_and_may_change_places(decoder):
    """Rows [b W : (b + 1) W] attend to sentence b, and one tree map over the cache reorders a beam."""
    cfg, beam = config(decoder=decoder), 3
    params = parameters(cfg)
    tokens = jax.random.randint(jax.random.key(3), (2 * beam, 4), 4, TARGET)
    copies = jax.tree.map(lambda x: jnp.repeat(x, beam, axis=0), memory())
    same(read(params, cfg, memory(), tokens), read(params, cfg, copies, tokens))
    order = np.array([2, 0, 0, 5, 4, 3])
    _, _, cache = read(params, cfg, memory(), tokens[:, :3])
    _, _, moved = read(params, cfg, memory(), tokens[order, :3])
    last = tokens[:, 3:]
    cache = jax.tree.map(lambda x: x[order], cache)
    same(advance(params, cfg, memory(), cache, last), advance(params, cfg, memory(), moved, last))


@every_kind
def test_attention_is_a_distribution_over_the_source_where_there_is_one(decoder):
    """Of each layer, and of all together: the mean of the layers, or the last where the config says so."""
    cfg = config(decoder=decoder)
    params, source = parameters(cfg), memory()
    _, attention, _ = read(params, cfg, source, TOKENS)
    _, layers, _ = advance_in_layers(params, cfg, source, begin(params, cfg, source), TOKENS)
    assert len(layers) == len(set(cfg.decoder.attention_names)) == len(cfg.decoder.attention_names)
    for a in (attention, *layers):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a.sum(-1), float(cfg.attends), rtol=1e-5)
        np.testing.assert_array_equal(a[1, :, 2:], 0.0)
    if layers:
        together = np.mean(layers, axis=0) if cfg.decoder.averages_attention else layers[-1]
        np.testing.assert_allclose(attention, together, rtol=0, atol=1e-6)


@one_kind
def test_padding_of_the_memory_is_not_read(decoder):
    cfg = config(decoder=decoder)
    params = parameters(cfg)
    features, attention, _ = read(params, cfg, memory(), TOKENS)
    wider, more, _ = read(params, cfg, memory(S + 3), TOKENS)
    same((wider, more[..., :S]), (features, attention))
    np.testing.assert_array_equal(more[..., S:], 0.0)
    one, _, _ = read(params, cfg, jax.tree.map(lambda x: x[1:], memory()), TOKENS[1:, :4])
    same(one[0], features[1, :4])


@one_kind
def test_dropout_of_a_target_depends_on_no_other_row(decoder):
    cfg = config(decoder=decoder, dropout=0.3)
    params, keys = parameters(cfg), row_keys(jax.random.key(3), 2)
    together = read(params, cfg, memory(), TOKENS, keys)
    alone = read(params, cfg, jax.tree.map(lambda x: x[1:], memory()), TOKENS[1:], keys[1:])
    same(alone, jax.tree.map(lambda x: x[1:], together))
    assert float(jnp.max(jnp.abs(together[0] - read(params, cfg, memory(), TOKENS)[0]))) > 0.01
