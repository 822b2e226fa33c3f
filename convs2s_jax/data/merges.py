"""Merge neighbouring symbols as in byte-pair encoding: with all merges, or with random merges left out."""

import heapq
import itertools
import random
from collections.abc import Callable, Mapping, Sequence


def merged(symbols: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Merge neighbours until no pair has a rank. Each step merges all pairs of the lowest rank, from left to right.

    Takes O(n log n) time for n symbols.
    """
    parts, n = [*symbols], len(symbols)
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))  # neighbours of each remaining part
    found = [(ranks[pair], i) for i, pair in enumerate(itertools.pairwise(parts)) if pair in ranks]
    heapq.heapify(found)
    while found:
        lowest, joined = found[0][0], []
        while found and found[0][0] == lowest:
            i = heapq.heappop(found)[1]
            j = after[i]
            if j < n and ranks.get((parts[i], parts[j])) == lowest:  # else merged with another neighbour since
                parts[i], parts[j], after[i] = parts[i] + parts[j], "", after[j]
                if after[i] < n:
                    before[after[i]] = i
                joined.append(i)
        for i in joined:
            for left, right in ((before[i], i), (i, after[i])):
                if left >= 0 and right < n and (parts[left], parts[right]) in ranks:
                    heapq.heappush(found, (ranks[parts[left], parts[right]], left))
    return [part for part in parts if part]


def merged_at_random(
    symbols: Sequence[str], *, rank: Callable[[str, str], float | None], rate: float, rng: random.Random
) -> list[str]:
    """Merge neighbours like `merged`, but before each step drop every candidate merge with probability `rate`.

    It stops when all candidates are dropped (Provilkov et al. 2020, algorithm 1).

    Args:
      symbols: letters.
      rank: returns the rank of a pair, or None if it is not merged. The lowest rank is merged first.
      rate: from 0 to 1.
      rng: random number generator.
    """
    parts = [*symbols]
    while True:
        ranks = itertools.starmap(rank, itertools.pairwise(parts))
        places = [(each, i) for i, each in enumerate(ranks) if each is not None and rng.random() >= rate]
        if not places:
            return parts
        lowest = min(places)[0]
        chosen = {i for each, i in places if each == lowest}
        joined, i = list[str](), 0
        while i < len(parts):
            both = i in chosen
            joined.append(parts[i] + parts[i + 1] if both else parts[i])
            i += 1 + both
        parts = joined
