"""What requests require of translations, prefixes and constraints: what a server takes, in arrays of known shapes."""

from collections.abc import Sequence
from typing import Literal

from convs2s_jax.core.config import check
from convs2s_jax.search.buckets import NO_AXES, Sizes
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation import arguments
from convs2s_jax.translation.lines import encode, encode_phrases
from convs2s_jax.translation.translator import Translator

Allowed = Literal["prefixes", "constraints", "sampling"]
MOST = Sizes(prefix=32, phrases=8, phrase=8)
"""Most tokens of a prefix, phrases of a line, and tokens of a phrase."""


def axes_of(allow: Sequence[Allowed], *, prefix: bool, constraints: bool) -> Sizes:
    """Room for what a request has. With constraints there is room for prefixes too, where a server takes both."""
    prefix = prefix or (constraints and "prefixes" in allow)
    return Sizes(
        prefix=MOST.prefix if prefix else 0,
        phrases=MOST.phrases if constraints else 0,
        phrase=MOST.phrase if constraints else 0,
    )


def kinds(allow: Sequence[Allowed]) -> tuple[Sizes, ...]:
    """All axes that requests to a server have; those of requests that require nothing first."""
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
    """The axes for what a request requires of its lines.

    Args:
      translator: the model.
      search: options of the search, for the length bounds.
      allow: what the server takes.
      lines: source lines.
      prefix: for each line, words that its translation begins with; None for none at all.
      constraints: for each line, phrases that occur in its translation; None for none at all.

    Raises:
      UserError: the server does not take it, or a translation cannot have it.
    """
    for field, name, given in (("prefix", "prefixes", prefix), ("constraints", "constraints", constraints)):
        check(
            given is None or name in allow,
            f"{field}: this server takes no {name}; it has to be started with --allow={name}",
        )
    arguments.check_required(translator, search, lines, prefix=prefix, constraints=constraints)
    tgt = translator.vocabularies.tgt
    tokens = [len(ids) for ids in encode(tgt, prefix or ())]
    phrases = [[len(ids) for ids in encode_phrases(tgt, wanted)] for wanted in constraints or ()]
    for what, counts, most in (
        ("tokens of a prefix", tokens, MOST.prefix),
        ("constraints of a line", map(len, phrases), MOST.phrases),
        ("tokens of a constraint", (n for each in phrases for n in each), MOST.phrase),
    ):
        count = max(counts, default=0)
        check(count <= most, f"{count} {what} are too many: this server takes up to {most}")
    return axes_of(allow, prefix=prefix is not None, constraints=constraints is not None)
