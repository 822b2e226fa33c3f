"""Convolutional Sequence to Sequence Learning (Gehring et al. 2017, arXiv 1705.03122) in one file, on JAX alone.

    python examples/paper.py

In the paper's order and letters, without dropout. A test holds it equal to the package. Where fairseq differs from the
paper, or the paper leaves a choice, it follows fairseq, as the package does. The script learns to reverse sequences.

Axes: B batch, S source time, T target time, K kernel width, C and D channels, E embedding, V vocabulary, W beam.
Parameters are dicts; a linear map or convolution is {"w": kernel, "b": bias}.
"""

import itertools
import math

import jax
import jax.numpy as jnp

PAD, EOS = 1, 2
SQRT_HALF = 0.5**0.5


def linear(p, x):
    """Compute x w + b: [..., C] -> [..., D]."""
    return x @ p["w"] + p["b"]


# Section 3.1: position embeddings
def embed(p, tokens):
    """e = w + p: [B, T] -> [B, T, E]. Positions count real tokens from PAD + 1 on (fairseq)."""
    real = tokens != PAD
    return p["table"][tokens] + p["positions"][jnp.cumsum(real, axis=1) * real + PAD]


# Section 3.2: convolutional block structure
def glu(y):
    """v([A B]) = A * sigmoid(B): [..., 2D] -> [..., D]."""
    a, b = jnp.split(y, 2, axis=-1)
    return a * jax.nn.sigmoid(b)


def block(p, x, left, right):
    """The gated convolution of x [B, T, C] with w [K, C, 2D], zeros added on both sides: [B, T, D]."""
    x = jnp.pad(x, ((0, 0), (left, right), (0, 0)))
    return glu(sum(x[:, j : x.shape[1] - left - right + j] @ w for j, w in enumerate(p["w"])) + p["b"])


def residual(layer, x):
    """The input of a layer, through a linear map where its output has another number of channels."""
    return linear(layer["projection"], x) if "projection" in layer else x


def encode(p, src, attentions):
    """Source [B, S] -> keys z and values (z + e) sqrt(0.5) (fairseq), [B, S, E], and where they are real [B, S, 1]."""
    real = (src != PAD)[:, :, None]
    e = embed(p, src)
    x = linear(p["map_in"], e)
    for layer in p["layers"]:
        K = len(layer["conv"]["w"])
        h = block(layer["conv"], x * real, (K - 1) // 2, K // 2)  # padding is zero before each convolution (fairseq)
        x = (h + residual(layer, x)) * SQRT_HALF
    z = scale_gradient(linear(p["map_out"], x) * real, 1 / (2 * attentions))
    return z, (z + e) * SQRT_HALF, real


# Section 3.3: multi-step attention
def attend(p, h, g, z, values, real):
    """d = W_d h + b_d + g;  a = softmax(d . z);  c = sum_j a_j (z_j + e_j), scaled by section 3.4: [B, T, D]."""
    d = (linear(p["query"], h) + g) * SQRT_HALF  # the factor: fairseq
    scores = jnp.einsum("BTE,BSE->BTS", d, z)
    a = jax.nn.softmax(jnp.where(jnp.swapaxes(real, 1, 2), scores, -jnp.inf), axis=-1)
    c = jnp.einsum("BTS,BSE->BTE", a, values) * jnp.sqrt(jnp.sum(real, axis=1, keepdims=True))
    return (linear(p["context"], c) + h) * SQRT_HALF  # mapped back to the channels of the layer (fairseq)


@jax.jit
def logits(params, src, tgt):
    """Source [B, S] and target [B, T], both with EOS -> unnormalised log-probabilities [B, T, V] of the target."""
    p = params["decoder"]
    z, values, real = encode(params["encoder"], src, len(p["layers"]))
    inputs = jnp.concatenate([jnp.full_like(tgt[:, :1], EOS), tgt[:, :-1]], axis=1)  # EOS starts a target (fairseq)
    g = embed(p, jnp.where(tgt == PAD, PAD, inputs))
    x = linear(p["map_in"], g)
    for layer in p["layers"]:
        h = block(layer["conv"], x, len(layer["conv"]["w"]) - 1, 0)  # sees the past only
        h = attend(layer["attention"], h, g, z, values, real)
        x = (h + residual(layer, x)) * SQRT_HALF
    return linear(p["output"], linear(p["map_out"], x))


# Section 3.4: normalization strategy. The factors sqrt(0.5) and m sqrt(1/m) stand where they are used.
def scale_gradient(x, scale):
    """x, with its gradient multiplied by `scale`: 1 / (2 * number of attentions) for the encoder (the 2: fairseq)."""
    return x * scale + jax.lax.stop_gradient(x * (1 - scale))


# Section 3.5: initialization
def init(key, V, E, encoder, decoder):
    """Parameters for layers [(channels, kernel width), ...] and V words on both sides, w ~ N(0, std), b = 0."""
    keys = map(jax.random.fold_in, itertools.repeat(key), itertools.count())

    def kernel(*shape, gain=1.0):
        std = (gain / math.prod(shape[:-1])) ** 0.5
        return {"w": std * jax.random.normal(next(keys), shape), "b": jnp.zeros(shape[-1])}

    def side(layers, attends):
        table, positions = (0.1 * jax.random.normal(next(keys), (rows, E)).at[PAD].set(0) for rows in (V, 1024))
        p = {"table": table, "positions": positions, "map_in": kernel(E, layers[0][0]), "layers": []}
        for (C, _), (D, K) in itertools.pairwise([layers[0], *layers]):
            layer = {"conv": kernel(K, C, 2 * D, gain=4.0)}
            if C != D:
                layer["projection"] = kernel(C, D)
            if attends:
                layer["attention"] = {"query": kernel(D, E), "context": kernel(E, D)}
            p["layers"].append(layer)
        return {**p, "map_out": kernel(layers[-1][0], E)}

    return {"encoder": side(encoder, attends=False), "decoder": {**side(decoder, attends=True), "output": kernel(E, V)}}


def norm(v):
    """Norm of each output channel of a kernel [..., D], over all other axes: [1, ..., D]."""
    return jnp.sqrt(jnp.sum(jnp.square(v), axis=range(v.ndim - 1), keepdims=True))


def each_kernel(change, params):
    """Apply `change` to each kernel with its bias."""
    is_kernel = lambda x: isinstance(x, dict) and "b" in x
    return jax.tree.map(lambda x: change(x) if is_kernel(x) else x, params, is_leaf=is_kernel)


def split(params):
    """Weight normalization (Salimans and Kingma 2016): each kernel w as its direction v and length g per output."""
    return each_kernel(lambda p: {"v": p["w"], "g": norm(p["w"]), "b": p["b"]}, params)


def merge(params):
    """w = g v / ||v||, the inverse of `split`."""
    return each_kernel(lambda p: {"w": p["g"] * p["v"] / norm(p["v"]), "b": p["b"]}, params)


# Section 4.2: model parameters and optimization
def loss(params, src, tgt, smoothing=0.0):
    """Summed cross entropy in nats and the number of target tokens; label smoothing as in fairseq (0 in the paper)."""
    log_p = jax.nn.log_softmax(logits(params, src, tgt))
    V, real = log_p.shape[-1], tgt != PAD
    nll = -jnp.take_along_axis(log_p, tgt[:, :, None], axis=-1)[:, :, 0]
    each = smoothing / (V - 1)
    smoothed = (1 - smoothing - each) * nll - each * jnp.sum(log_p, axis=-1)
    return jnp.sum(smoothed * real), jnp.sum(real)


@jax.jit
def update(params, momentum, src, tgt, rate=0.25, smoothing=0.0):
    """Nesterov's accelerated gradient, momentum 0.99, on split parameters; gradients are clipped to norm 0.1."""
    (total, count), g = jax.value_and_grad(lambda p: loss(merge(p), src, tgt, smoothing), has_aux=True)(params)
    size = jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(g))) / count
    g = jax.tree.map(lambda x: x / count * jnp.minimum(1.0, 0.1 / (size + 1e-6)), g)
    momentum = jax.tree.map(lambda u, x: x + 0.99 * u, momentum, g)
    params = jax.tree.map(lambda p, u, x: p - rate * (x + 0.99 * u), params, momentum, g)
    return params, momentum, total / count


# Section 4.2: generation, by beam search with log-likelihoods divided by the length
def beam_search(params, src, W=5, limit=50):
    """The W best translations of one sentence [S]: (log P / length, tokens); no better one can come when it stops."""
    live, done = [(0.0, [])], []
    for step in range(limit + 1):
        rows = [tokens + [EOS] + [PAD] * (limit - step) for _, tokens in live]
        log_p = jax.nn.log_softmax(logits(params, jnp.tile(src, (len(rows), 1)), jnp.array(rows))[:, step])
        totals = (log_p + jnp.array([[total] for total, _ in live])).at[:, PAD].set(-jnp.inf)
        if step == limit:
            totals = jnp.where(jnp.arange(totals.shape[1]) == EOS, totals, -jnp.inf)
        ranked = [x.tolist() for x in jax.lax.top_k(totals.reshape(-1), 2 * W)]
        found = [(t, live[i // log_p.shape[1]][1], i % log_p.shape[1]) for t, i in zip(*ranked, strict=True)]
        done += [(t / (step + 1), tokens) for t, tokens, word in found[:W] if word == EOS and t > -jnp.inf]
        done = sorted(done, key=lambda hypothesis: -hypothesis[0])[:W]
        live = [(t, [*tokens, word]) for t, tokens, word in found if word != EOS][:W]
        reach = max(live[0][0] / (step + 2), live[0][0] / (limit + 1))
        if len(done) == W and reach <= done[-1][0]:
            break
    return done


def main(updates=300):
    """Learn to reverse sequences of 6 symbols; print the loss and the reversed sequence of one more."""
    params = split(init(jax.random.key(0), V=20, E=32, encoder=[(32, 3)] * 3, decoder=[(32, 3)] * 3))
    momentum = jax.tree.map(jnp.zeros_like, params)
    for i in range(updates):
        words = jax.random.randint(jax.random.key(i), (64, 6), 4, 20)
        src, tgt = (jnp.pad(x, ((0, 0), (0, 1)), constant_values=EOS) for x in (words, words[:, ::-1]))
        params, momentum, nats = update(params, momentum, src, tgt)
        if (i + 1) % 50 == 0:
            print(f"update {i + 1}: {nats:.3f} nats per token")
    score, tokens = beam_search(merge(params), src[0], limit=8)[0]
    print(src[0, :-1], "->", tokens, f"(log P / length {score:.3f})")
    return src[0, :-1].tolist(), tokens


if __name__ == "__main__":
    main()
