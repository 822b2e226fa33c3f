"""Diverse beam search (Vijayakumar et al. 2018): groups of hypotheses that avoid one another's choices."""

import jax.numpy as jnp

from convs2s_jax.core.tokens import EOS
from convs2s_jax.search.strategies.base import Candidates, Strategy, View
from convs2s_jax.search.top import top


def choose(view: View) -> Candidates:
    """Return the best continuations of each group, one group after another (their algorithm 1, Hamming diversity).

    A group's candidates are ordered by  cumulative score - strength * (how often earlier groups chose this token at
    this step).  The returned cumulative scores do not include the second term. The G groups of a sentence are adjacent
    on the axis R = B * G.
    """
    G, strength = view.structure.groups, view.numbers.diverse_strength
    scores = view.scores()
    R, H, V = scores.shape
    grouped = (scores + view.totals[:, :, None]).reshape(R // G, G, H, V)
    times = jnp.zeros((R // G, V), jnp.float32)
    sentence = jnp.arange(R // G, dtype=jnp.int32)[:, None]
    results = []
    for group in range(G):
        steered, beams, tokens = top(grouped[:, group] - strength * times[:, None, :], 2 * H)
        found = grouped[:, group].reshape(R // G, H * V)
        results.append((jnp.take_along_axis(found, beams * V + tokens, axis=-1), beams, tokens))
        lives = (tokens != EOS) & (steered > -jnp.inf)
        chosen = lives & (jnp.cumsum(lives, axis=-1) <= H)
        times = times.at[sentence, tokens].add(chosen.astype(times.dtype))
    totals, beams, tokens = (jnp.stack(x, axis=1).reshape(R, 2 * H) for x in zip(*results, strict=True))
    return Candidates(totals, beams, tokens)


DIVERSE = Strategy(choose)
