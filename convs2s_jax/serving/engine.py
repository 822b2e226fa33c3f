"""The model behind a server: the searches, widths and batch sizes that are compiled, and the translation of a batch."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from convs2s_jax.core import local_copies
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell
from convs2s_jax.search import keys, shortlist
from convs2s_jax.search.batching import Batching, widths_up_to
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.options import same_program
from convs2s_jax.search.requests import NO_AXES, Sizes
from convs2s_jax.serving.options import Allowed, ServeOptions
from convs2s_jax.translation import arguments, shortlists, translator
from convs2s_jax.translation.jobs.options import overridden, plain_search
from convs2s_jax.translation.lines import TextRequest, encode, encode_phrases, translate
from convs2s_jax.translation.results import Result
from convs2s_jax.translation.translator import Translator

MEDIUM_BATCH = 8
"""Lines in batches of medium size, and in those with attention."""
LARGEST_REQUIRED = Sizes(prefix=32, phrases=8, phrase=8)
"""Maximum number of tokens per prefix, phrases per line, and tokens per phrase."""


class Key(NamedTuple):
    """The settings that all lines of a batch share.

    Attributes:
      search: options of the search.
      replace_unk: whether unknown words are replaced by source words.
      attention: whether the attention is returned.
      shortlist: whether translations use only the words that the shortlist allows for their sources.
      axes: sizes of the arrays for prefixes and constraints.
    """

    search: SearchConfig
    replace_unk: bool = False
    attention: bool = False
    shortlist: bool = False
    axes: Sizes = NO_AXES


class LineRequest(NamedTuple):
    """A line with the settings that may differ within a batch.

    Attributes:
      text: the line.
      nbest: number of hypotheses to return.
      prefix: words that the translation must begin with.
      constraints: phrases that must occur in the translation.
      draw: seed and line number that determine its samples.
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
      search: default search options, which a request may override.
      beam_sizes: beam sizes that a request may use.
      batch_size: maximum number of lines in a batch.
      max_tokens: maximum number of source tokens per line, including the end symbol.
      allow: optional features that requests may use.
    """

    translator: Translator
    search: SearchConfig
    beam_sizes: tuple[int, ...]
    batch_size: int
    max_tokens: int
    allow: tuple[Allowed, ...] = ()

    def search_for(self, changes: Mapping[str, Any], *, nbest: int = 1) -> SearchConfig:
        """The search options of a request.

        Raises:
          UserError: a value is invalid or would require compilation.
        """
        search = changed(self.search, **changes)
        check(
            search.beam_size in self.beam_sizes,
            f"beam_size is {search.beam_size}; this server supports {', '.join(map(str, self.beam_sizes))}",
        )
        check(
            not search.sampling or "sampling" in self.allow,
            "sampling is not enabled on this server; it must be started with --allow=sampling",
        )
        check(
            same_program(search, changed(self.search, beam_size=search.beam_size, sampling=search.sampling)),
            "coverage_penalty is not enabled on this server; it must be started with --coverage_penalty above 0"
            if self.search.coverage_penalty == 0
            else "coverage_penalty is 0, but this server was started with one; use a value above 0",
        )
        check(
            search.normalize or "length_penalty" not in changes,
            "length_penalty has no effect, since this server does not normalise scores by length; remove it",
        )
        check(1 <= nbest <= search.beam_size, f"nbest is {nbest}; use 1 to {search.beam_size}, the beam size")
        return search

    def room_for(self, request: TextRequest) -> Sizes:
        """The array sizes for the prefixes and constraints of a request.

        Raises:
          UserError: the server does not allow them, or no translation can satisfy them.
        """
        prefix, constraints = request.prefix, request.constraints
        if prefix is None and constraints is None:
            return NO_AXES
        check(not request.search.sampling, "sampling cannot be combined with prefix or constraints; remove one of them")
        for field, name, given in (("prefix", "prefixes", prefix), ("constraints", "constraints", constraints)):
            check(
                given is None or name in self.allow,
                f"{field} is not enabled on this server; it must be started with --allow={name}",
            )
        arguments.check_required(self.translator, request)
        tgt, most = self.translator.vocabularies.tgt, LARGEST_REQUIRED
        phrases = [[len(ids) for ids in encode_phrases(tgt, wanted)] for wanted in constraints or ()]
        for what, counts, limit in (
            ("tokens in a prefix", [len(ids) for ids in encode(tgt, prefix or ())], most.prefix),
            ("constraints", [len(each) for each in phrases], most.phrases),
            ("tokens in a constraint", [max(each, default=0) for each in phrases], most.phrase),
        ):
            for number, count in enumerate(counts, 1):
                check(
                    count <= limit, f"line {number}: {count} {what} are too many; this server accepts at most {limit}"
                )
        return self._sizes(constraints=constraints is not None)

    def _sizes(self, *, constraints: bool) -> Sizes:
        """Array sizes with room for prefixes, if the server allows them, and perhaps for constraints."""
        most = LARGEST_REQUIRED
        return Sizes(most.prefix * ("prefixes" in self.allow), most.phrases * constraints, most.phrase * constraints)

    def widths_of(self, lines: Sequence[str]) -> list[int]:
        """The width of the source array that each line needs.

        Raises:
          UserError: a line is too long.
        """
        widths = []
        for number, ids in enumerate(encode(self.translator.vocabularies.src, lines), 1):
            check(
                len(ids) < self.max_tokens,
                f"line {number} has {len(ids)} tokens, but this server accepts at most {self.max_tokens - 1}; split it",
            )
            widths.append(next(width for width in self.widths if width > len(ids)))
        return widths

    @property
    def widths(self) -> tuple[int, ...]:
        """The compiled widths of source arrays."""
        return widths_up_to(self.max_tokens)

    def rows_of(self, key: Key) -> tuple[int, ...]:
        """The sizes of batches with this key, smallest first."""
        rare = key.attention or key.search.sampling or key.axes != NO_AXES
        sizes = (1, MEDIUM_BATCH) if rare else (1, MEDIUM_BATCH, self.batch_size // 2, self.batch_size)
        return tuple(sorted({max(1, min(size, self.batch_size)) for size in sizes}))

    def run(self, key: Key, width: int, lines: Sequence[LineRequest]) -> list[Result]:
        """Translate lines of at most this width, in one batch of a compiled shape."""
        rows = next(size for size in self.rows_of(key) if size >= len(lines))
        few = self.translator.shortlist
        if key.search.sampling:
            few = None  # samples are drawn from all words
        elif few is not None and not key.shortlist:
            few = shortlist.full_shortlist(few.size)
        request = TextRequest(
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
        return translate(replace(self.translator, shortlist=few), request)

    def shapes(self) -> Iterator[tuple[Key, int, int]]:
        """(key, width, lines) of every program."""
        for key in self._keys():
            for width in self.widths:
                for rows in self.rows_of(key):
                    yield key, width, rows

    def _keys(self) -> Iterator[Key]:
        """The keys that need separate programs."""
        attentions = (False, True) if self.translator.attends else (False,)
        shortlists = (False, True) if self.translator.shortlist else (False,)
        sizes = (NO_AXES, self._sizes(constraints=False), self._sizes(constraints="constraints" in self.allow))
        kinds = [(False, few, axes) for few in shortlists for axes in dict.fromkeys(sizes)]
        if "sampling" in self.allow:
            kinds.append((True, False, NO_AXES))
        for beam_size in self.beam_sizes:
            for sampling, few, axes in kinds:
                search = changed(self.search, beam_size=beam_size, sampling=sampling)
                yield from (Key(search, attention=attention, shortlist=few, axes=axes) for attention in attentions)

    def compile(self) -> Iterator[None]:
        """Compile the programs of all shapes, yielding after each."""
        for key, width, rows in self.shapes():
            self.run(key, width, [LineRequest("1")] * rows)
            yield


@functools.lru_cache(maxsize=1024)
def changed(search: SearchConfig, **changes: Any) -> SearchConfig:
    """A search with some fields changed. Cached, since validation is slow and most requests use the same options.

    Raises:
      UserError: it does not allow that.
    """
    return replace(search, **changes)


def load(options: ServeOptions, *, tell: Tell) -> Engine:
    """Load the model that the options specify.

    Raises:
      UserError: there is no such model, it does not translate, or the options do not fit it.
    """
    model = translator.load(
        options.workdir, steps=options.checkpoint, dtype=options.dtype, tell=tell, given_as="--workdir"
    )
    search = plain_search(model, options.workdir[0], options.search, "a server")
    sizes = options.beam_sizes or (search.beam_size,)
    searches = [overridden(search, {"beam_size": size}) for size in sizes]
    if options.shortlist:
        with local_copies.incoming("--shortlist", options.shortlist) as path:
            model = replace(model, shortlist=shortlists.load(path, model.vocabularies))
    return Engine(
        translator=translator.precomputed(model, int8=options.int8),
        search=searches[0],
        beam_sizes=tuple(dict.fromkeys(sizes)),
        batch_size=options.batch_size,
        max_tokens=min(options.max_tokens, model.max_source),
        allow=options.allow,
    )
