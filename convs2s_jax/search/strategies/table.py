"""The strategy for the options of a `SearchConfig`."""

from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.strategies.base import Strategy
from convs2s_jax.search.strategies.constrained import CONSTRAINED
from convs2s_jax.search.strategies.diverse import DIVERSE
from convs2s_jax.search.strategies.plain import PLAIN
from convs2s_jax.search.strategies.sampled import SAMPLED


def strategy_of(cfg: SearchConfig, *, phrases: bool = False) -> Strategy:
    """Return the strategy of a configuration. `phrases` is true if there are phrases that must occur."""
    if cfg.sampling:
        return SAMPLED
    if cfg.diverse_groups > 1:
        return DIVERSE
    return CONSTRAINED if phrases else PLAIN
