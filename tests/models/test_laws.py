"""Laws that every kind of encoder and decoder obeys, and every pair of them; `kinds.py` lists what they run over."""

import itertools
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.encoder_decoder import ModelConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.table import DECODERS as DECODER_KINDS
from convs2s_jax.models.table import ENCODERS as ENCODER_KINDS
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.dropout import row_keys
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.translate import translate
from convs2s_jax.training import sharding
from convs2s_jax.training.loss import Batch, loss
from convs2s_jax.training.mesh import MeshConfig, make
from tests.models.kinds import DECODERS, ENCODERS, firsts

E, SOURCE, TARGET, S = 32, 14, 13, 5
FIRST_ENCODER, FIRST_DECODER = next(iter(ENCODERS)), next(iter(DECODERS))
every_encoder = pytest.mark.parametrize("encoder", ENCODERS)
every_decoder = pytest.mark.parametrize("decoder", DECODERS)


def config(encoder=FIRST_ENCODER, decoder=FIRST_DECODER, **fields):
    values = {"embedding_dim": E, "encoder": ENCODERS[encoder], "decoder": DECODERS[decoder], **fields}
    return build(ModelConfig, values)


@lru_cache
def parameters(cfg):
    """Parameters in which nothing is zero: biases and the rows of padding would hide mistakes."""
    rng = np.random.default_rng(0)
    init = partial(model.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
    shapes = jax.eval_shape(init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), leaf.dtype), shapes)


def fresh(cfg):
    return model.init(jax.random.key(0), cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)


def same(a, b, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), a, b)


def near_to(half, exact):
    """Eight bits of mantissa are 0.4 % an operation: within 5 % in all."""
    return 0 < np.linalg.norm(np.float32(half) - exact) < 0.05 * np.linalg.norm(exact)


def padded(sentences, length, left=False):
    rows = [[PAD] * (length - len(s)) + s if left else s + [PAD] * (length - len(s)) for s in sentences]
    return jnp.asarray(rows, jnp.int32)


def with_table(params, side, table):
    """Parameters with another embedding table on one side: the only thing laws know of a kind's parameters."""
    part = getattr(params, side)
    return params.replace(**{side: part.replace(embedding=part.embedding.replace(table=table))})


# Encoders

SENTENCES = [[5, 6, 7, 8, 9, EOS], [10, 4, EOS], [11, EOS]]
encode = jax.jit(model.encode, static_argnums=1)


@every_encoder
def test_padding_on_either_side_and_batch_neighbours_leave_the_memory_as_it_is(encoder):
    cfg = config(encoder)
    params = parameters(cfg)
    alone = [encode(params, cfg, jnp.asarray([s], jnp.int32)) for s in SENTENCES]
    for width, left in ((6, False), (6, True), (9, False), (9, True)):
        src = padded(SENTENCES, width, left)
        memory = encode(params, cfg, src)
        np.testing.assert_array_equal(memory.mask, src != PAD)
        for b, (sentence, one) in enumerate(zip(SENTENCES, alone, strict=True)):
            own = slice(-len(sentence), None) if left else slice(len(sentence))
            same((memory.keys[b, own], memory.values[b, own]), (one.keys[0], one.values[0]))
            same(memory.summary[b], one.summary[0])


@every_encoder
def test_every_source_position_is_in_keys_values_and_summary_and_padding_in_none(encoder):
    cfg = config(encoder)
    params = parameters(cfg)
    src = padded(SENTENCES[:1], 8)
    weights = np.random.default_rng(1).normal(size=(3, 1, 1, E)).astype(np.float32)

    @jax.jit
    def read(params):
        def sums(table):
            memory = model.encode(with_table(params, "encoder", table), cfg, src)
            keys, values = (jnp.where(memory.mask[..., None], x, 0.0) for x in (memory.keys, memory.values))
            return jnp.stack(
                [jnp.sum(x * w) for x, w in zip((keys, values, memory.summary[:, None]), weights, strict=True)]
            )

        return jax.jacrev(sums)(params.encoder.embedding.table)

    reads = np.abs(read(params)).max(-1)
    assert (reads[:, SENTENCES[0]] > 1e-6).all()
    assert (reads[:, [PAD, 4, 10, 11, 12]] == 0.0).all()


@every_encoder
def test_dropout_of_a_source_depends_on_no_other_row(encoder):
    cfg = config(encoder, dropout=0.3)
    params, keys = parameters(cfg), row_keys(jax.random.key(3), 3)
    src = padded(SENTENCES, 6)
    together = encode(params, cfg, src, key=keys)
    same(encode(params, cfg, src[1:], key=keys[1:]), jax.tree.map(lambda x: x[1:], together))
    assert float(jnp.max(jnp.abs(together.keys - encode(params, cfg, src).keys))) > 0.01


@every_encoder
def test_a_memory_of_bfloat16_is_bfloat16_and_near(encoder):
    cfg, half = config(encoder), config(encoder, dtype="bfloat16")
    params, src = fresh(cfg), padded(SENTENCES, 6)
    exact, near = encode(params, cfg, src), encode(model.cast(params, half), half, src)
    assert {near.keys.dtype, near.values.dtype, near.summary.dtype} == {jnp.dtype("bfloat16")}
    assert near_to(near.keys, exact.keys)


@every_encoder
def test_encoding_without_jit_is_the_same(encoder):
    cfg = config(encoder)
    src = padded(SENTENCES, 6)
    same(model.encode(parameters(cfg), cfg, src), encode(parameters(cfg), cfg, src))


# Decoders

TOKENS = jnp.asarray([[EOS, 5, 6, 7, 8, 9, 10], [EOS, 11, 12, 5, PAD, PAD, PAD]], jnp.int32)
LENGTHS = [S, 2]


def memory(width=S, sentences=2, dtype=jnp.float32):
    """Two sentences; what stands at padding is large, so that who reads it is seen."""
    rng = np.random.default_rng(1)
    keys, values = rng.normal(size=(2, sentences, S, E))
    more = ((0, 0), (0, width - S), (0, 0))
    keys, values = (jnp.asarray(np.pad(x, more, constant_values=50.0), dtype) for x in (keys, values))
    mask = jnp.arange(width)[None] < jnp.asarray(LENGTHS)[:sentences, None]
    return Memory(keys=keys, values=values, mask=mask, summary=jnp.asarray(rng.normal(size=(sentences, E)), dtype))


@partial(jax.jit, static_argnums=1)
def advance(params, cfg, memory, cache, tokens, key=None):
    return model.advance(params, cfg, memory, cache, tokens, key=key)


def begin(params, cfg, memory, rows=2):
    return model.start(params, cfg, memory, rows)


def read(params, cfg, memory, tokens, key=None):
    return advance(params, cfg, memory, begin(params, cfg, memory, len(tokens)), tokens, key)


@pytest.mark.parametrize("cuts", [[1] * 7, [3, 1, 3]], ids=str)
@every_decoder
def test_any_cut_of_the_target_gives_the_same_features_attention_and_cache(decoder, cuts):
    """With parameters and memory as they are, and made ready for many calls."""
    cfg = config(decoder=decoder)
    params, source = parameters(cfg), memory()
    whole = read(params, cfg, source, TOKENS)
    ready = model.ready(params, cfg)
    for p, m in ((params, source), (ready, model.prepare(ready, cfg, source))):
        cache, at, made = begin(p, cfg, m), 0, []
        for cut in cuts:
            *part, cache = advance(p, cfg, m, cache, TOKENS[:, at : at + cut])
            made.append(part)
            at += cut
        same(tuple(jnp.concatenate(parts, axis=1) for parts in zip(*made, strict=True)), whole[:2])
        if p is params:
            same(cache, whole[2])


@every_decoder
def test_a_cache_has_rows_first_and_keeps_its_shapes_and_types(decoder):
    """As a loop over steps needs it, in bfloat16 too."""
    for dtype in ("float32", "bfloat16"):
        cfg = config(decoder=decoder, dtype=dtype)
        params = model.ready(parameters(cfg), cfg)
        source = model.prepare(params, cfg, memory(dtype=dtype))
        cache = begin(params, cfg, source, 6)
        after = jax.eval_shape(
            lambda c, p=params, m=source, k=cfg: model.advance(p, k, m, c, TOKENS[:1].repeat(6, 0))[2], cache
        )
        assert jax.tree.map(lambda x: (x.shape, x.dtype), cache) == jax.tree.map(lambda x: (x.shape, x.dtype), after)
        assert {leaf.shape[0] for leaf in jax.tree.leaves(cache)} == {6}
        assert {leaf.shape[0] for leaf in jax.tree.leaves(source)} == {2}


@every_decoder
def test_features_read_no_later_word_and_do_read_their_own(decoder):
    cfg = config(decoder=decoder)
    params = parameters(cfg)
    tokens = jnp.asarray([[EOS, 5, 6, 7, 8, 9]], jnp.int32)
    weights = np.random.default_rng(2).normal(size=E).astype(np.float32)

    @jax.jit
    def jacobian(params):
        def features(table):
            source = memory(sentences=1)
            changed = with_table(params, "decoder", table)
            out, _, _ = model.advance(changed, cfg, source, begin(changed, cfg, source, 1), tokens)
            return jnp.einsum("TO,O->T", out[0], weights[: out.shape[-1]])

        return jax.jacrev(features)(params.decoder.embedding.table)[:, tokens[0]]

    reads = np.abs(jacobian(params)).max(-1)
    assert (reads[np.triu_indices(6, 1)] == 0.0).all()
    assert (np.diagonal(reads) > 1e-6).all()


@every_decoder
def test_hypotheses_share_the_memory_of_their_sentence_and_may_change_places(decoder):
    """Rows [b W : (b + 1) W] read sentence b, and a beam is reordered by one tree map of the cache."""
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


@every_decoder
def test_attention_is_a_distribution_over_the_source_where_there_is_one(decoder):
    cfg = config(decoder=decoder)
    _, attention, _ = read(parameters(cfg), cfg, memory(), TOKENS)
    assert attention.dtype == jnp.float32
    np.testing.assert_allclose(attention.sum(-1), float(cfg.attends), rtol=1e-5)
    np.testing.assert_array_equal(attention[1, :, 2:], 0.0)


@every_decoder
def test_padding_of_the_memory_is_not_read(decoder):
    cfg = config(decoder=decoder)
    params = parameters(cfg)
    features, attention, _ = read(params, cfg, memory(), TOKENS)
    wider, more, _ = read(params, cfg, memory(S + 3), TOKENS)
    same((wider, more[..., :S]), (features, attention))
    np.testing.assert_array_equal(more[..., S:], 0.0)
    one, _, _ = read(params, cfg, jax.tree.map(lambda x: x[1:], memory()), TOKENS[1:, :4])
    same(one[0], features[1, :4])


@every_decoder
def test_dropout_of_a_target_depends_on_no_other_row(decoder):
    cfg = config(decoder=decoder, dropout=0.3)
    params, keys = parameters(cfg), row_keys(jax.random.key(3), 2)
    together = read(params, cfg, memory(), TOKENS, keys)
    alone = read(params, cfg, jax.tree.map(lambda x: x[1:], memory()), TOKENS[1:], keys[1:])
    same(alone, jax.tree.map(lambda x: x[1:], together))
    assert float(jnp.max(jnp.abs(together[0] - read(params, cfg, memory(), TOKENS)[0]))) > 0.01


@every_decoder
def test_features_of_bfloat16_are_bfloat16_and_logits_float32(decoder):
    cfg, half = config(decoder=decoder), config(decoder=decoder, dtype="bfloat16")
    params = fresh(cfg)
    exact, _, _ = read(params, cfg, memory(), TOKENS)
    params = model.cast(params, half)
    near, _, _ = read(params, half, memory(dtype="bfloat16"), TOKENS)
    assert near.dtype == jnp.bfloat16
    assert model.logits(params, half, near).dtype == jnp.float32
    assert near_to(near[TOKENS != PAD], exact[TOKENS != PAD])


@every_decoder
def test_decoding_without_jit_is_the_same(decoder):
    cfg = config(decoder=decoder)
    params = parameters(cfg)
    eager = model.advance(params, cfg, memory(), begin(params, cfg, memory()), TOKENS)
    same(eager, read(params, cfg, memory(), TOKENS))


@every_decoder
def test_the_widest_beam_finds_what_listing_everything_finds(decoder):
    """Four words, three of them at most: 85 hypotheses, of which a beam of 80 finds the best."""
    cfg = config(decoder=decoder)
    init = partial(model.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=6)
    params = jax.tree.map(lambda x: 2 * x, init(jax.random.key(1)))
    search = SearchConfig(beam_size=80, max_length_a=0.0, max_length_b=3, min_length=0)
    (found,) = translate(params, cfg, search, [np.array([5, 6, 7])], devices=jax.devices()[:1])
    words = [v for v in range(6) if v not in (PAD, EOS)]
    every = [(*w, EOS) for n in range(4) for w in itertools.product(words, repeat=n)]
    tgt = padded([list(w) for w in every], 4)

    @jax.jit
    def scores(params):
        source = model.encode(params, cfg, jnp.asarray([[5, 6, 7, EOS]], jnp.int32))
        logits, _, _ = model.decode(
            params, cfg, source, begin(params, cfg, source, len(tgt)), model.decoder_inputs(tgt)
        )
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tgt[..., None], axis=-1)[..., 0]
        return jnp.sum(jnp.where(tgt == PAD, 0.0, picked), axis=1) / jnp.sum(tgt != PAD, axis=1, dtype=jnp.float32)

    listed = np.asarray(scores(params))
    order = np.argsort(-listed)
    assert len(found.candidates) == 80
    np.testing.assert_allclose([c.score for c in found.candidates], listed[order[:80]], rtol=1e-5, atol=1e-5)
    assert [tuple(c.tokens) for c in found.candidates[:10]] == [every[i][:-1] for i in order[:10]]


# Whole models


def halves():
    """Each encoder with the first decoder, each decoder with the first encoder."""
    return [(name, FIRST_DECODER) for name in ENCODERS] + [(FIRST_ENCODER, name) for name in list(DECODERS)[1:]]


every_half = pytest.mark.parametrize(("encoder", "decoder"), halves())
every_pair = pytest.mark.parametrize(
    ("encoder", "decoder"), list(dict.fromkeys([*itertools.product(firsts(ENCODERS), firsts(DECODERS)), *halves()]))
)
"""Each kind of encoder with each kind of decoder, and every line of the table in one pair."""


@pytest.mark.parametrize("length", [1, 1000])
@every_half
def test_gradients_are_finite_at_any_length(encoder, decoder, length):
    """Of fresh parameters, beside a row of padding; at usual lengths every parameter gets some."""
    cfg = config(encoder, decoder, dropout=0.1)
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, 13, size=(2, 1, length)).astype(np.int32)
    tokens[..., -1] = EOS
    src, tgt = (np.concatenate([x, np.full_like(x, PAD)]) for x in tokens)

    @jax.jit
    def gradient():
        params = model.init(jax.random.key(0), cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
        batch = Batch(src=jnp.asarray(src), tgt=jnp.asarray(tgt))
        return jax.value_and_grad(lambda p: loss(p, cfg, batch, key=jax.random.key(1)).loss)(params)

    value, gradients = gradient()
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@every_half
def test_every_parameter_has_a_gradient_a_place_on_a_mesh_and_comes_back_from_its_leaves(encoder, decoder):
    cfg = config(encoder, decoder)
    batch = Batch(src=padded(SENTENCES, 7), tgt=padded([[5, 6, 7, EOS], [8, EOS], [9, 10, EOS]], 5))
    params = parameters(cfg)
    gradients = jax.jit(jax.grad(lambda p: loss(p, cfg, batch).loss))(params)
    still = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)
        if not float(jnp.max(jnp.abs(leaf))) > 0
    ]
    assert still == []
    trained = jax.eval_shape(partial(model.split, cfg=cfg), params)
    sharding.shardings(trained, make(MeshConfig(data=2, fsdp=2, tensor=2)))
    leaves, structure = jax.tree.flatten(trained)
    merged = jax.eval_shape(weight_norm.merge, jax.tree.unflatten(structure, leaves))
    assert jax.tree.structure(merged) == jax.tree.structure(jax.eval_shape(partial(fresh, cfg)))


PAIRS, UPDATES, RATE, LEARNT = 64, 500, 0.01, 0.2


@every_pair
def test_any_pair_learns_64_pairs_by_heart(encoder, decoder):
    """Random words on both sides: greedy decoding gives every target back, word for word."""
    execution = {"convolution": "products"}  # which is fast in the loop over updates
    cfg = config(encoder, decoder, dropout=0.0, execution=execution)
    rng = np.random.default_rng(5)
    sources = [[4 + n // 144, 4 + n // 12 % 12, 4 + n % 12, EOS] for n in rng.choice(12**3, PAIRS, replace=False)]
    targets = [[*rng.integers(4, 16, size=n).tolist(), EOS] for n in rng.integers(1, 4, size=PAIRS)]
    batch = Batch(src=padded(sources, 5), tgt=padded(targets, 4))
    params = model.Params(
        encoder=begun(ENCODER_KINDS[cfg.encoder.kind].init, cfg.encoder),
        decoder=begun(DECODER_KINDS[cfg.decoder.kind].init, cfg.decoder),
    )
    assert float(learnt(model.split(params, cfg), cfg, batch)) == 1.0


@lru_cache
def begun(init, cfg):
    """Fresh parameters of one side, compiled once for all its pairs."""
    return jax.jit(partial(init, cfg=cfg, vocabulary=16, dim=E, rate=0.0))(jax.random.key(0))


@partial(jax.jit, static_argnums=1)
def learnt(params, cfg, batch):
    """Share of targets that greedy decoding gives back after training until all together cost less than LEARNT nats.

    Then each of their words is much more likely than all others.
    """
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE, b2=0.98))

    @jax.value_and_grad
    def total(params):
        return loss(weight_norm.merge(params), cfg, batch).loss

    def update(carry):
        params, state, _, count = carry
        value, gradients = total(params)
        with jax.numpy_dtype_promotion("standard"):  # of optax's count of updates
            updates, state = optimizer.update(gradients, state)
        updates = jax.tree.map(lambda u: jnp.where(value > LEARNT, u, 0.0), updates)  # the last ones stay as they are
        return optax.apply_updates(params, updates), state, value, count + 1

    def goes_on(carry):
        _, _, value, count = carry
        return (value > LEARNT) & (count < UPDATES)

    params, *_ = jax.lax.while_loop(goes_on, update, (params, optimizer.init(params), jnp.inf, 0))
    params = weight_norm.merge(params)
    memory = model.encode(params, cfg, batch.src)

    def step(carry, _):
        cache, last = carry
        logits, _, cache = model.decode(params, cfg, memory, cache, last[:, None])
        last = jnp.argmax(logits[:, 0], axis=-1).astype(last.dtype)
        return (cache, last), last

    first = model.start(params, cfg, memory, PAIRS), jnp.full(PAIRS, EOS, jnp.int32)
    _, words = jax.lax.scan(step, first, None, length=batch.tgt.shape[1])
    given_back = jnp.all((batch.tgt == words.T) | (batch.tgt == PAD), axis=1)
    return jnp.mean(given_back.astype(jnp.float32))


def test_every_kind_of_the_library_has_a_line_in_the_table():
    assert {values["kind"] for values in ENCODERS.values()} == {k for k, r in ENCODER_KINDS.items() if r.speaks}
    assert {values["kind"] for values in DECODERS.values()} == set(DECODER_KINDS)
