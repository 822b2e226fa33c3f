"""Plain beam search: the candidates are the 2H continuations with the highest cumulative scores."""

import jax.numpy as jnp

from convs2s_jax.search import rules
from convs2s_jax.search.strategies.base import Candidates, Strategy, View
from convs2s_jax.search.top import is_large, top, top_of_logits


def choose(view: View) -> Candidates:
    """Return the 2H best continuations, best first.

    If no rule depends on single continuations, the softmax over a large vocabulary is never materialised.
    """
    k = 2 * view.structure.group_size
    logits = view.logits
    ruled = view.request.prefixes.shape[1] or view.structure.no_repeat_ngram
    if not ruled and not isinstance(logits, rules.Fused) and logits.ndim == 2 and is_large(logits.shape[-1]):
        found = logits.reshape(*view.totals.shape, -1).astype(jnp.float32)
        return Candidates(*top_of_logits(found, view.totals, view.prices(), k, temperature=view.numbers.temperature))
    return Candidates(*top(view.scores() + view.totals[:, :, None], k))


PLAIN = Strategy(choose, first_step_on_one_row=True)
