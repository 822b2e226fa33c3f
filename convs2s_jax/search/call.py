"""A checked call of `translate`: its batches, and what the compiled search gets for each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.rows import Tokens
from convs2s_jax.models.checks import check_config
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Key
from convs2s_jax.search import keys
from convs2s_jax.search.buckets import DEFAULT_BATCHING, Batching, Bucket, Sizes, at_least, batches, numbered
from convs2s_jax.search.checks import (
    ModelConfigs,
    Models,
    check_required,
    check_shortlist,
    check_untraced,
    checked_sources,
    members_of,
    target_size,
)
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.numbers import Numbers
from convs2s_jax.search.request import as_ids, as_phrases, check_required_ids, request, sizes
from convs2s_jax.search.shortlist import BatchConstraints, Shortlist, batch_constraints_of
from convs2s_jax.search.sources import max_output_length, source_rows, truncated
from convs2s_jax.search.spread import put
from convs2s_jax.search.strategies.table import strategy_of
from convs2s_jax.search.structure import structure_of


@dataclass(frozen=True)
class Call:
    """A checked call of `translate`: its sentences, and the arguments of `generate` for each of its batches.

    Attributes:
      members: parameters of the models.
      cfgs: configs of the models.
      search: options of the search.
      sources: the sources, truncated to the models' positions.
      cuts: number of tokens that each source lost.
      most: maximum number of tokens of each translation before the end symbol.
      drawn: raw keys of the sentences, for sampling only.
      axes: sizes of the arrays of prefixes and phrases.
      plan: the batches.
      selected: function of some batches to the constraints of their rows.
      attention: whether the attention weights are returned.
    """

    members: tuple[Params, ...]
    cfgs: tuple[ModelConfig, ...]
    search: SearchConfig
    sources: Sequence[np.ndarray]
    cuts: Sequence[int]
    most: Sequence[int]
    drawn: np.ndarray | None
    axes: Sizes
    plan: Sequence[Bucket]
    selected: Callable[[Sequence[Bucket]], BatchConstraints]
    attention: bool

    def pass_to(
        self,
        program: Callable[..., Any],
        placed: tuple[Params, ...],
        numbers: Numbers,
        group: Sequence[Bucket],
        mesh: Mesh | None,
    ) -> Any:
        """Call `generate`, or a function of the same arguments, for some batches, one for each device of the mesh.

        Args:
          program: the function.
          placed: the parameters on these devices, precomputed.
          numbers: the numbers of the search on these devices.
          group: batches of equal shape.
          mesh: the devices; None for the default device.

        Returns:
          What the function returns.
        """
        width = group[0].width
        indices = [i for bucket in group for i in bucket.padded]
        selection, prefixes, phrases = self.selected(group)
        asked = request(
            [0 if i is None else self.most[i] for i in indices],
            prefixes,
            phrases,
            None if self.drawn is None else keys.rows(self.drawn, indices),
            axes=self.axes,
        )
        src, asked, selection = put((source_rows(self.sources, indices, width), asked, selection), mesh)
        return program(
            placed,
            self.cfgs,
            strategy_of(self.search, phrases=self.axes.phrases > 0),
            structure_of(self.search),
            numbers,
            src,
            asked,
            limit=max_output_length(self.cfgs, self.search, width) + 1,
            selection=selection,
            attention=self.attention,
            mesh=mesh,
        )


def checked_call(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig,
    sources: Sequence[Tokens],
    *,
    prefixes: Sequence[Tokens] | None = None,
    phrases: Sequence[Sequence[Tokens]] | None = None,
    key: Key | np.ndarray | None = None,
    shortlist: Shortlist | None = None,
    nbest: int | None = None,
    attention: bool = False,
    batching: Batching = DEFAULT_BATCHING,
) -> Call:
    """Check the arguments of `translate` and plan its batches. Raises ValueError and TypeError, as `translate` does."""
    members, cfgs = members_of(params, cfg, search)
    count = len(sources)
    check_untraced((params, key), sources, () if prefixes is None else prefixes, *(() if phrases is None else phrases))
    _check_options(search, batching, key, shortlist, nbest)
    sources = checked_sources(sources, members, cfgs)
    prefixes = as_ids("its prefix", [()] * count if prefixes is None else prefixes)
    phrases = as_phrases([()] * count if phrases is None else phrases)
    drawn = keys.on_host(key, count) if search.sampling else None
    reads = any(c.reads_source for c in cfgs)
    read, cuts = truncated(sources, cfgs)
    lengths = [len(source) + 1 for source in read]
    most = [max_output_length(cfgs, search, length) for length in lengths]
    check_required(sources, prefixes, phrases, most, reads=reads)
    real = [i for i, source in enumerate(sources) if len(source) > 0 or not reads]
    if real:  # otherwise there may be no parameters
        words = target_size(members, cfgs)
        check_required_ids(prefixes, phrases, words)
        if shortlist is not None:
            check_shortlist(shortlist, members, cfgs, words)
    plan = numbered(batches([lengths[i] for i in real], batching), real)
    return Call(
        members,
        cfgs,
        search,
        read,
        cuts,
        most,
        drawn,
        at_least(sizes(prefixes, phrases), batching.min_axes),
        plan,
        batch_constraints_of(shortlist, plan, read, prefixes, phrases, sizes=batching.word_sizes),
        attention,
    )


def _check_options(
    search: SearchConfig,
    batching: Batching,
    key: Key | np.ndarray | None,
    shortlist: Shortlist | None,
    nbest: int | None,
) -> None:
    """Refuse options of `translate` that are wrong or do not fit each other."""
    check_config(batching, Batching, name="batching")
    if shortlist is not None and search.sampling:
        raise ValueError("shortlist with sampling: samples are drawn from the whole vocabulary; leave one out")
    if key is not None and not search.sampling:
        raise ValueError("key without sampling: this search draws no samples; leave it out, or set sampling=True")
    if nbest is not None and (not isinstance(nbest, Integral) or nbest < 1):
        raise ValueError(f"nbest is {nbest!r}: use 1 or more, or None for all that the search finds")
    if batching.min_axes.phrases and (search.sampling or search.diverse_groups > 1):
        raise ValueError(
            f"batching.min_axes has room for {batching.min_axes.phrases} phrases, which work with plain beam search "
            "only: use 0"
        )
