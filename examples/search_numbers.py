"""Temperature and length penalty as arrays: vmap a search over them, or differentiate its score.

    python examples/search_numbers.py

One compiled program searches with five length penalties at once (`vmap`). The script prints the length of the best
hypothesis for each, then the derivatives of the best score with respect to both numbers (`grad`). The derivatives treat
the choice of hypothesis as constant.
"""

import functools

import jax
import jax.numpy as jnp

import convs2s_jax as convs2s

V, LIMIT = 10, 12
CFG = convs2s.SearchConfig(beam_size=4)
LOGITS = 2 * jax.random.normal(jax.random.key(4), (V, V))  # logits of the next token, given the last one


def step(memory, cache, last):
    """A random bigram language model."""
    return LOGITS[last], cache


def best(length_penalty, temperature, fixed_length=False):
    """Return the length and score of the best hypothesis. `grad` needs a loop of fixed length."""
    search = convs2s.search_options(CFG).replace(length_penalty=length_penalty, temperature=temperature)
    found = convs2s.beam_search(
        step,
        search,
        memory=(),
        cache=jnp.zeros(CFG.beam_size),
        request=convs2s.request(max_lengths=[LIMIT - 1]),
        limit=LIMIT,
        fixed_length=fixed_length,
    )
    return found.lengths[0, 0], found.scores[0, 0]


def main():
    """Return the penalties, the length and score for each penalty, and the two derivatives."""
    penalties = jnp.array([0.0, 0.5, 1.0, 1.5, 2.0])
    lengths, scores = jax.jit(jax.vmap(best, in_axes=(0, None)))(penalties, jnp.float32(1.0))
    for penalty, length, score in zip(penalties, lengths, scores, strict=True):
        print(f"length penalty {penalty:.1f}: {length} symbols, score {score:.3f}")
    score = functools.partial(best, fixed_length=True)
    slopes = jax.jit(jax.grad(lambda *numbers: score(*numbers)[1], argnums=(0, 1)))(jnp.float32(1.0), jnp.float32(1.0))
    print(f"d score / d length penalty {slopes[0]:.4f}, d score / d temperature {slopes[1]:.4f}")
    return penalties, lengths, scores, slopes


if __name__ == "__main__":
    main()
