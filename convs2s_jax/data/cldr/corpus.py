"""Train, valid and test of the built-in corpus.

A stream of phrases, sampled with the seed, is divided into splits:

* A pair is dropped if its source or target text occurred before. So each source has one target, and no text occurs in
  two splits, on either side.
* A hash of its text assigns each pair to a split, independent of the seed and the sizes. So valid and test stay the
  same when train grows, and no test pair is ever seen in training, even with another seed.
"""

import difflib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random

from babel import Locale
from babel.localedata import locale_identifiers

from convs2s_jax.core.config import check, record
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.cldr.phrases import PHRASES, Phrase

Pairs = tuple[list[str], list[str]]

_PATIENCE = 20_000  # the corpus counts as exhausted after this many repeated phrases in a row


@record
class CldrConfig:
    """Sizes and seed of the built-in corpus. No text of one split occurs in another, on either side.

    Attributes:
      train: pairs to train on.
      valid: pairs for validation.
      test: pairs for the final test.
      seed: seed for sampling the phrases.
    """

    train: int = 100_000
    valid: int = 1_000
    test: int = 1_000
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test"):
            size = getattr(self, name)
            check(size >= 1, f"{name} is {size}: the built-in corpus needs a pair in each split; use 1 or more")


class Splits(Mapping[str, Pairs]):
    """The splits by name. Each is generated on first access, so that translating test need not wait for train.

    Pairs are sampled until the split has its size; pairs of other splits are kept for later. So the order of access
    does not matter. Not thread-safe.

    Args:
      pairs: all pairs, in sampling order.
      cfg: the sizes.
      name: of the corpus, for messages.

    Raises:
      UserError: on access to a split of which `pairs` has too few.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], cfg: CldrConfig, name: str) -> None:
        self._pairs, self._name = iter(pairs), name
        self._sizes = {"train": cfg.train, "valid": cfg.valid, "test": cfg.test}
        self._made: dict[str, Pairs] = {name: ([], []) for name in self._sizes}

    def __getitem__(self, split: str) -> Pairs:
        made, size = self._made[split], self._sizes[split]
        while len(made[0]) < size:
            pair = next(self._pairs, None)
            if pair is None:
                found = ", ".join(f"{name} {len(lines)}" for name, (lines, _) in self._made.items())
                raise UserError(
                    f"the built-in corpus {self._name} has only {found} pairs: use smaller sizes in data.cldr"
                )
            name = _split(pair)
            if len(self._made[name][0]) < self._sizes[name]:
                for lines, text in zip(self._made[name], pair, strict=True):
                    lines.append(text)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


def generate(
    src_locale: str,
    tgt_locale: str,
    cfg: CldrConfig,
    *,
    phrases: Mapping[str, Callable[[Random], Phrase]] = PHRASES,
) -> Splits:
    """Generate the corpus: {"train": (source lines, target lines), "valid": ..., "test": ...}.

    Lines are in sampling order, with all kinds mixed. They contain no line breaks; CLDR's non-breaking spaces are kept.
    The result depends only on the arguments and on the version of Babel (that is, of CLDR). Splits are generated on
    first access.

    Raises:
      UserError: a locale is not in CLDR; or, on access to a split, there are too few pairs.
    """
    src, tgt = _locale("src_locale", src_locale), _locale("tgt_locale", tgt_locale)
    drawn = ((source, target) for _, source, target in _unseen(src, tgt, cfg.seed, phrases))
    return Splits(drawn, cfg, f"{src_locale}-{tgt_locale}")


def generate_kinds(locale: str, cfg: CldrConfig) -> Splits:
    """Generate a corpus of phrases with their kinds, for classification: {"train": (phrases, names of kinds), ...}.

    No phrase occurs twice. Otherwise as `generate`.

    Raises:
      UserError: as in `generate`.
    """
    src = _locale("src", locale)
    return Splits(((source, kind) for kind, source, _ in _unseen(src, src, cfg.seed, PHRASES)), cfg, locale)


def _unseen(
    src: Locale, tgt: Locale, seed: int, phrases: Mapping[str, Callable[[Random], Phrase]]
) -> Iterator[tuple[str, str, str]]:
    """Sample (kind, source, target) with new source and target texts, until there are no new ones."""
    rng, kinds = Random(seed), tuple(phrases)
    sources: set[str] = set()
    targets: set[str] = set()
    misses = 0
    while misses < _PATIENCE:
        kind = rng.choice(kinds)
        phrase = phrases[kind](rng)
        source, target = _write(kind, phrase, src), _write(kind, phrase, tgt)
        if source in sources or target in targets:
            misses += 1
            continue
        misses = 0
        sources.add(source)
        targets.add(target)
        yield kind, source, target


def _write(kind: str, phrase: Phrase, locale: Locale) -> str:
    try:
        return phrase(locale)
    except (LookupError, ValueError, NotImplementedError) as error:  # Babel's errors for missing data of a locale
        raise UserError(f"locale '{locale}' has no words for {kind} in CLDR: use another locale") from error


def _split(pair: tuple[str, str]) -> str:
    """Return the split of a pair by a machine-independent hash: 1/16 valid, 1/16 test, the rest train."""
    digest = hashlib.blake2b("\n".join(pair).encode(), digest_size=1).digest()[0]
    return {0: "valid", 1: "test"}.get(digest % 16, "train")


def _locale(field: str, name: str) -> Locale:
    """Parse an identifier such as de, pt_BR or zh-Hant. The error for others suggests one, even for English names."""
    known = {identifier.lower(): identifier for identifier in locale_identifiers()}
    identifier = known.get(name.replace("-", "_").lower())
    if identifier:
        return Locale.parse(identifier)
    spoken = {text.lower(): code for code, text in Locale("en").languages.items() if code in known}
    near = difflib.get_close_matches(name.lower(), [*known, *spoken], n=1, cutoff=0)[0]
    raise UserError(f"{field} is '{name}': CLDR does not have this locale; did you mean '{(known | spoken)[near]}'?")
