"""Prefixes and constraints of requests: which ones a server accepts, in arrays of compiled shapes."""

from collections.abc import Sequence

from convs2s_jax.core.config import check
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.ids import NO_AXES, Sizes
from convs2s_jax.serving.options import Allowed
from convs2s_jax.translation import arguments
from convs2s_jax.translation.lines import encode, encode_phrases
from convs2s_jax.translation.translator import Translator

MOST = Sizes(prefix=32, phrases=8, phrase=8)
"""Maximum number of tokens per prefix, phrases per line, and tokens per phrase."""


def axes_of(allow: Sequence[Allowed], *, prefix: bool, constraints: bool) -> Sizes:
    """Array sizes for a request. Requests with constraints also have room for prefixes if the server allows both."""
    prefix = prefix or (constraints and "prefixes" in allow)
    return Sizes(
        prefix=MOST.prefix if prefix else 0,
        phrases=MOST.phrases if constraints else 0,
        phrase=MOST.phrase if constraints else 0,
    )


def kinds(allow: Sequence[Allowed]) -> tuple[Sizes, ...]:
    """All array sizes that requests to a server use. The first is for requests without prefixes and constraints."""
    names = [name for name in allow if name != "sampling"]
    return (NO_AXES, *(axes_of(allow, prefix=name == "prefixes", constraints=name == "constraints") for name in names))


def checked(
    translator: Translator,
    search: SearchConfig,
    allow: Sequence[Allowed],
    lines: Sequence[str],
    *,
    prefix: Sequence[str] | None,
    constraints: Sequence[Sequence[str]] | None,
) -> Sizes:
    """Check the prefixes and constraints of a request, and return their array sizes.

    Args:
      translator: the model.
      search: options of the search, for the length limits.
      allow: features that the server allows.
      lines: source lines.
      prefix: for each line, words that its translation must begin with; None if the request has no prefixes.
      constraints: for each line, phrases that must occur in its translation; None if the request has no constraints.

    Raises:
      UserError: the server does not allow them, or no translation can satisfy them.
    """
    for field, name, given in (("prefix", "prefixes", prefix), ("constraints", "constraints", constraints)):
        check(
            given is None or name in allow,
            f"{field} is not enabled on this server; it must be started with --allow={name}",
        )
    arguments.check_required(translator, search, lines, prefix=prefix, constraints=constraints)
    tgt = translator.vocabularies.tgt
    tokens = [len(ids) for ids in encode(tgt, prefix or ())]
    phrases = [[len(ids) for ids in encode_phrases(tgt, wanted)] for wanted in constraints or ()]
    for what, counts, most in (
        ("tokens in a prefix", tokens, MOST.prefix),
        ("constraints", map(len, phrases), MOST.phrases),
        ("tokens in a constraint", (max(each, default=0) for each in phrases), MOST.phrase),
    ):
        for number, count in enumerate(counts, 1):
            check(count <= most, f"line {number}: {count} {what} are too many; this server accepts at most {most}")
    return axes_of(allow, prefix=prefix is not None, constraints=constraints is not None)
