"""Temperature and length penalty are arrays: map a search over them, or differentiate its score.

    python examples/search_numbers.py

One compiled program searches with five length penalties at once (`vmap`), and prints how long the best hypothesis is
under each. Then it prints the derivative of the best score with respect to both numbers (`grad`). The derivative is
that of the hypothesis found, as if the choice were constant.
"""

import functools

import jax
import jax.numpy as jnp

import convs2s_jax as convs2s

V, LIMIT = 10, 12
CFG = convs2s.SearchConfig(beam_size=4)
LOGITS = 2 * jax.random.normal(jax.random.key(4), (V, V))  # of the next symbol, given the last


def step(memory, cache, last):
    """A random bigram language."""
    return LOGITS[last], cache


def best(length_penalty, temperature, chunk=1):
    """Length and score of the best hypothesis. `grad` needs a loop of fixed length: chunk=LIMIT."""
    numbers = convs2s.numbers_of(CFG).replace(length_penalty=length_penalty, temperature=temperature)
    found = convs2s.beam_search(
        step,
        convs2s.strategy_of(CFG),
        numbers,
        memory=(),
        cache=jnp.zeros(CFG.beam_size),
        request=convs2s.request(max_lengths=[LIMIT - 1]),
        structure=convs2s.structure_of(CFG),
        limit=LIMIT,
        chunk=chunk,
    )
    return found.lengths[0, 0], found.scores[0, 0]


def main():
    """The penalties, lengths and scores under each, and the two derivatives."""
    penalties = jnp.array([0.0, 0.5, 1.0, 1.5, 2.0])
    lengths, scores = jax.jit(jax.vmap(best, in_axes=(0, None)))(penalties, jnp.float32(1.0))
    for penalty, length, score in zip(penalties, lengths, scores, strict=True):
        print(f"length penalty {penalty:.1f}: {length} symbols, score {score:.3f}")
    score = functools.partial(best, chunk=LIMIT)
    slopes = jax.jit(jax.grad(lambda *numbers: score(*numbers)[1], argnums=(0, 1)))(jnp.float32(1.0), jnp.float32(1.0))
    print(f"d score / d length penalty {slopes[0]:.4f}, d score / d temperature {slopes[1]:.4f}")
    return penalties, lengths, scores, slopes


if __name__ == "__main__":
    main()
