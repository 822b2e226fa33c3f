"""Beam search without a neural network: it only needs a step function and a cache.

    python examples/toy_beam_search.py

The model is a bigram language model of four words. Greedy search starts with the most probable word and misses the
most probable sentence, which a beam of three finds. The script prints the hypotheses of both with their
log-probabilities.
"""

import functools

import jax
import jax.numpy as jnp

import convs2s_jax as convs2s

EOS = 2
WORDS = {EOS: "</s>", 4: "a", 5: "the", 6: "dog", 7: "barks"}
P = {  # p(next word | word); a sentence starts after EOS
    EOS: {4: 0.45, 5: 0.4, 6: 0.15},
    4: {6: 0.32, 7: 0.28, 5: 0.25, EOS: 0.15},
    5: {6: 0.9, 7: 0.1},
    6: {7: 0.8, EOS: 0.2},
    7: {EOS: 0.9, 7: 0.1},
}
TABLE = jnp.log(jnp.array([[P.get(a, {}).get(b, 0.0) for b in range(8)] for a in range(8)]) + 1e-9)


def bigram_step(memory, cache, last):
    """Return log-probabilities [N, V] of the word after `last` [N]. Here, the cache only counts words."""
    return TABLE[last], cache + 1


@functools.partial(jax.jit, static_argnames="cfg")
def find(cfg):
    """Search for B = 1 sentence; the rows of the cache are its W = cfg.beam_size hypotheses."""
    return convs2s.beam_search(
        bigram_step,
        cfg,
        memory=(),
        cache=jnp.zeros(cfg.beam_size, jnp.int32),
        request=convs2s.request(max_lengths=[6]),
        limit=7,
    )


def main():
    """Return the hypotheses of greedy search and of a beam of three."""
    results = []
    for name, cfg in (
        ("greedy", convs2s.SearchConfig(beam_size=1, normalize=False, stop="fairseq")),
        ("beam 3", convs2s.SearchConfig(beam_size=3, normalize=False)),
    ):
        found = find(cfg)
        results.append(found)
        for tokens, score in zip(found.tokens[0], found.scores[0], strict=True):
            sentence = " ".join(WORDS[t] for t in tokens.tolist() if t in WORDS)
            print(f"{name}: {score:6.3f}  {sentence}")
    return results


if __name__ == "__main__":
    main()
