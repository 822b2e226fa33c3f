"""Score translations: the table of metrics, and a function that computes several of them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.metrics import d2l_bleu, exact, rouge, sacre
from convs2s_jax.metrics.record import Metric, Score

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "bleu": sacre.BLEU_METRIC,
        "chrf": sacre.CHRF_METRIC,
        "ter": sacre.TER_METRIC,
        "exact": exact.METRIC,
        "rouge": rouge.METRIC,
        "d2l_bleu": d2l_bleu.METRIC,
    }
)
DEFAULT = ("bleu", "chrf", "exact")


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = DEFAULT,
    bleu_tokenize: str = "13a",
) -> dict[str, Score]:
    """Score hypotheses against one or more references.

    Args:
      hypotheses: detokenised sentences, without line ends.
      references: one or more lists, each with a text for every hypothesis.
      metrics: names from `METRICS`.
      bleu_tokenize: BLEU's tokeniser, one of `sacre.TOKENIZERS`.

    Returns:
      Scores by key, in the order of `metrics`.

    Raises:
      UserError: an unknown metric or tokeniser, a missing package, different numbers of lines, no references, or no
        lines.
    """
    check_metrics(metrics, bleu_tokenize)
    check(len(references) > 0, "there are no references: expected one or more lists with a text for every hypothesis")
    for lines in references:
        check(
            len(hypotheses) == len(lines),
            f"there are {len(hypotheses)} hypotheses for {len(lines)} references: their numbers must be equal",
        )
    check(len(hypotheses) > 0, "there are no sentences to score: hypotheses and references need at least one line")
    found = (s for name in metrics for s in METRICS[name].score(hypotheses, references, bleu_tokenize))
    return {s.key: s for s in found}


def hint(references: Sequence[str], *, metrics: Sequence[str], bleu_tokenize: str, flag: str) -> str:
    """Return advice if most references end in a separate punctuation mark, although BLEU tokenises them again.

    Args:
      references: the lines.
      metrics, bleu_tokenize: as in `score`.
      flag: the flag that sets `bleu_tokenize`, for the advice.

    Returns:
      A sentence, or "" for references that do not look tokenised.
    """
    ends = sum(line.endswith((" .", " ?", " !")) for line in references)
    if "bleu" not in metrics or bleu_tokenize == "none" or 2 * ends <= len(references):
        return ""
    return f"the references look tokenised; with {flag}=none, BLEU compares their words as they are"


def check_metrics(metrics: Sequence[str], bleu_tokenize: str) -> None:
    """Raise UserError before training if one of the metrics cannot be computed."""
    for name in metrics:
        if name not in METRICS:
            raise UserError(f"metrics contains '{name}'{did_you_mean(name, METRICS)}")
        METRICS[name].check(bleu_tokenize)


def report(scores: Mapping[str, Score]) -> str:
    """Return one line per score, with a note on how it was computed."""
    return "\n".join(f"{s.title:<11} {s.value:6.2f}  {s.note}" for s in scores.values())
