"""The model behind a server: which searches, widths and batch sizes are compiled, and how a batch is translated."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from convs2s_jax.core.config import build, check, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.search import keys, shortlist
from convs2s_jax.search.buckets import NO_AXES, Batching, Sizes, widths_up_to
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.structure import structure_of
from convs2s_jax.search.translate import longest
from convs2s_jax.serving import required
from convs2s_jax.serving.required import Allowed
from convs2s_jax.translation.lines import encode, translate
from convs2s_jax.translation.results import Result
from convs2s_jax.translation.translator import Translator

FEW = 8
"""Lines in batches of middle size, and in those with attention."""


class Key(NamedTuple):
    """What lines of one batch have in common.

    Attributes:
      search: options of the search.
      replace_unk: whether unknown words are replaced by source words.
      attention: whether the attention is returned.
      shortlist: whether translations use the likely words of their sources only.
      axes: room for prefixes and constraints (`required.kinds`).
    """

    search: SearchConfig
    replace_unk: bool = False
    attention: bool = False
    shortlist: bool = False
    axes: Sizes = NO_AXES


class LineRequest(NamedTuple):
    """A line, and what is asked of its translation alone: lines of one batch may differ in it.

    Attributes:
      text: the line.
      nbest: hypotheses that are returned.
      prefix: words that its translation begins with.
      constraints: phrases that occur in it.
      draw: seed and number that its samples depend on.
    """

    text: str
    nbest: int = 1
    prefix: str = ""
    constraints: Sequence[str] = ()
    draw: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Engine:
    """A model that is ready to translate batches of known shapes.

    Attributes:
      translator: the model, or an ensemble.
      search: options of the search, unless a request has others.
      beam_sizes: those that a request may ask for.
      batch_size: most lines of a batch.
      max_tokens: most source tokens of a line, its end symbol counted.
      allow: what requests may require of translations.
    """

    translator: Translator
    search: SearchConfig
    beam_sizes: tuple[int, ...]
    batch_size: int
    max_tokens: int
    allow: tuple[Allowed, ...] = ()

    def asked(self, changes: Mapping[str, Any], *, nbest: int = 1) -> SearchConfig:
        """The options of a request.

        Raises:
          UserError: values that a search cannot have, or that would have to be compiled first.
        """
        try:
            search = _changed(self.search, tuple(changes.items()))
        except UserError as error:  # a request names its fields without a path
            raise UserError(str(error).removeprefix("search.")) from error
        check(
            search.beam_size in self.beam_sizes,
            f"beam_size is {search.beam_size}: this server has {', '.join(map(str, self.beam_sizes))}",
        )
        check(
            not search.sampling or "sampling" in self.allow,
            "sampling: this server draws no samples; it has to be started with --allow=sampling",
        )
        own = structure_of(with_beam(self.search, search.beam_size, sampling=search.sampling))
        check(
            structure_of(search) == own,
            "coverage_penalty is 0 in this server's search, or in this request's alone: whether there is one is chosen "
            "when the server is started",
        )
        check(
            search.normalize or "length_penalty" not in changes,
            "length_penalty: this server does not divide scores by a power of the length; leave it out",
        )
        check(
            1 <= nbest <= search.beam_size,
            f"nbest is {nbest}: use 1 to {search.beam_size}, since a search has as many hypotheses as its beam",
        )
        return search

    def room_for(
        self,
        search: SearchConfig,
        lines: Sequence[str],
        *,
        prefix: Sequence[str] | None,
        constraints: Sequence[Sequence[str]] | None,
    ) -> Sizes:
        """The axes for what a request requires (`required.checked`)."""
        if prefix is None and constraints is None:
            return NO_AXES
        check(not search.sampling, "sampling with prefix or constraints: samples are drawn freely; leave one out")
        given: dict[str, Any] = {"prefix": prefix, "constraints": constraints}
        return required.checked(self.translator, search, self.allow, lines, **given)

    def widths_of(self, lines: Sequence[str]) -> list[int]:
        """Columns that the source of each line needs.

        Raises:
          UserError: a line is too long.
        """
        widths = []
        for number, ids in enumerate(encode(self.translator.vocabularies.src, lines), 1):
            if len(ids) + 1 > self.max_tokens:
                raise UserError(
                    f"line {number} has {len(ids)} tokens: this server takes up to {self.max_tokens - 1}; divide it"
                )
            widths.append(next(width for width in self.widths if width > len(ids)))
        return widths

    def most_weights(self, search: SearchConfig, widths: Sequence[int], *, nbest: int) -> int:
        """Most weights that the attention of lines of these widths has, in the hypotheses of an answer."""
        models = self.translator.models
        return nbest * sum(width * (longest(models, search, width) + 1) for width in widths)

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of source arrays, each twice as many as the one before."""
        return widths_up_to(self.max_tokens)

    def rows_of(self, key: Key) -> tuple[int, ...]:
        """The sizes of batches with this key, smallest first."""
        rare = key.attention or key.search.sampling or key.axes != NO_AXES
        sizes = (1, FEW) if rare else (1, FEW, self.batch_size // 2, self.batch_size)
        return tuple(sorted({max(1, min(size, self.batch_size)) for size in sizes}))

    def run(self, key: Key, width: int, lines: Sequence[LineRequest]) -> list[Result]:
        """Translate lines that need at most this width, in one batch of a known shape."""
        rows = next(size for size in self.rows_of(key) if size >= len(lines))
        few = self.translator.shortlist
        if key.search.sampling:
            few = None  # samples are drawn from all words
        elif few is not None and not key.shortlist:
            few = shortlist.everything(few.size)
        return translate(
            replace(self.translator, shortlist=few),
            key.search,
            [line.text for line in lines],
            nbest=max(line.nbest for line in lines),
            prefix=[line.prefix for line in lines] if key.axes.prefix else None,
            constraints=[line.constraints for line in lines] if key.axes.phrases else None,
            replace_unk=key.replace_unk,
            attention=key.attention,
            key=keys.for_search(key.search, [line.draw[0] for line in lines], [line.draw[1] for line in lines]),
            batching=Batching(
                size=rows,
                tokens=rows * width,
                min_rows=rows,
                min_width=width,
                min_axes=key.axes,
                word_sizes=shortlist.fixed_sizes(few, rows),
            ),
        )

    def shapes(self) -> Iterator[tuple[Key, int, int]]:
        """(key, width, lines) of every program: batches of one search differ in size, width, and attention."""
        for beam_size in self.beam_sizes:
            search = with_beam(self.search, beam_size)
            for key in self._keys(search):
                for width in self.widths:
                    for rows in self.rows_of(key):
                        yield key, width, rows

    def _keys(self, search: SearchConfig) -> Iterator[Key]:
        """The keys of a search whose programs differ."""
        attentions = (False, True) if self.translator.attends else (False,)
        for few in (False, True) if self.translator.shortlist else (False,):
            for axes in required.kinds(self.allow):
                for attention in attentions:
                    yield Key(search, attention=attention, shortlist=few, axes=axes)
        if "sampling" in self.allow:
            sampled = with_beam(search, search.beam_size, sampling=True)
            yield from (Key(sampled, attention=attention) for attention in attentions)

    def compile(self) -> Iterator[None]:
        """Compile the programs of all shapes; yields after each."""
        for key, width, rows in self.shapes():
            self.run(key, width, [LineRequest("1")] * rows)
            yield


def with_beam(search: SearchConfig, size: int, *, sampling: bool = False) -> SearchConfig:
    """The same search with another beam, or as many samples. Raises UserError where it cannot have that."""
    return _changed(search, (("beam_size", size), ("sampling", sampling)))


@functools.lru_cache(maxsize=1024)
def _changed(search: SearchConfig, changes: tuple[tuple[str, Any], ...]) -> SearchConfig:
    """A search with other values of some fields. Checking takes longer than the rest of a request, and few differ."""
    return build(SearchConfig, to_dict(search) | dict(changes), "search")
