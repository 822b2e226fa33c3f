import math
import sys
from collections import Counter

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.metrics import scoring
from convs2s_jax.metrics.record import Score
from convs2s_jax.metrics.sacre import PACKAGES, TOKENIZERS
from convs2s_jax.metrics.scoring import hint, report

HYPOTHESES = ["the cat sat on the mat", "there is a dog here", "the the the the the", "yes it is so"]
REFERENCES = ["the cat sat on a mat today", "there is a dog here", "the old man and the sea again", "yes it is so"]


def score(hypotheses, *references, **options):
    """Values by key."""
    return {key: s.value for key, s in scoring.score(hypotheses, references, **options).items()}


def ngrams(items, n):
    return Counter(tuple(items[i : i + n]) for i in range(len(items) - n + 1))


def bleu_by_hand(hypotheses, references):
    """Papineni et al. 2002: brevity penalty times the geometric mean of clipped precisions, of words between spaces."""
    matched, made = [0] * 4, [0] * 4
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        for n in range(4):
            ours, theirs = (ngrams(text.split(), n + 1) for text in (hypothesis, reference))
            matched[n] += sum(min(count, theirs[gram]) for gram, count in ours.items())
            made[n] += sum(ours.values())
    length, wanted = (sum(len(text.split()) for text in texts) for texts in (hypotheses, references))
    mean = math.exp(sum(math.log(m / n) for m, n in zip(matched, made, strict=True)) / 4)
    return 100 * min(1.0, math.exp(1 - wanted / length)) * mean


def chrf_by_hand(hypotheses, references):
    """Popović 2015: F-score, beta 2, of mean precision and mean recall of 1- to 6-grams of characters, no spaces."""
    matched, made, wanted = [0] * 6, [0] * 6, [0] * 6
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        for n in range(6):
            ours, theirs = (ngrams(text.replace(" ", ""), n + 1) for text in (hypothesis, reference))
            matched[n] += sum((ours & theirs).values())
            made[n] += sum(ours.values())
            wanted[n] += sum(theirs.values())
    precision = sum(m / n for m, n in zip(matched, made, strict=True)) / 6
    recall = sum(m / n for m, n in zip(matched, wanted, strict=True)) / 6
    return 100 * 5 * precision * recall / (4 * precision + recall)


def test_bleu_is_papinenis():
    bleu = score(HYPOTHESES, REFERENCES)["bleu"]
    assert 10 < bleu < 90
    assert bleu == pytest.approx(bleu_by_hand(HYPOTHESES, REFERENCES), rel=1e-9)


def test_a_long_hypothesis_is_not_rewarded():
    long = [text + " and so on" for text in REFERENCES]
    assert score(long, REFERENCES)["bleu"] == pytest.approx(bleu_by_hand(long, REFERENCES), rel=1e-9)


def test_chrf_is_popovics():
    chrf = score(HYPOTHESES, REFERENCES)["chrf"]
    assert 10 < chrf < 90
    assert chrf == pytest.approx(chrf_by_hand(HYPOTHESES, REFERENCES), rel=1e-9)


@pytest.mark.parametrize(
    ("hypotheses", "references", "edits", "words"),
    [
        (["a b c d"], [["a b c d"]], 0, 4),
        (["c d a b e"], [["a b c d e"]], 1, 5),  # a run moves: without moves there would be 4 edits
        (["x b"], [["a b c"]], 2, 3),  # one replaced, one missing
        (["A b c d e", "u"], [["a b", "u v"]], 3 + 1, 2 + 2),  # of the corpus, in lower case
        (["a b c d e f"], [["a"]], 5, 1),  # above 100
        (["a b c"], [["a x y"], ["a b c d e"]], 2, 4),  # the fewest edits, over the mean length
    ],
)
def test_ter_is_snovers(hypotheses, references, edits, words):
    assert score(hypotheses, *references, metrics=["ter"]) == pytest.approx({"ter": 100 * edits / words})


def test_exact_match_counts_whole_sentences():
    scores = score(HYPOTHESES, REFERENCES)
    assert scores["exact_match"] == 50
    assert score(["a b"], ["a\N{NO-BREAK SPACE}b"])["exact_match"] == 0
    assert score(["a b", ""], ["  a  b ", " "])["exact_match"] == 100  # spaces that no vocabulary keeps
    assert score(["a b"], ["ab"])["exact_match"] == 0


def test_perfect_translations_score_100():
    scores = score(REFERENCES, REFERENCES)
    assert scores == pytest.approx({"bleu": 100, "chrf": 100, "exact_match": 100})


def test_the_order_of_sentences_changes_nothing():
    turned = score(HYPOTHESES[::-1], REFERENCES[::-1])
    assert turned == pytest.approx(score(HYPOTHESES, REFERENCES))


def test_a_hint_tells_of_tokenised_references_in_place_of_sacrebleus_warning(caplog):
    lines = ["a b c d .", "e ?", "f"] * 50
    score(lines, lines, metrics=["bleu"], bleu_tokenize="13a")
    assert caplog.text == ""
    given = {"metrics": ("chrf", "bleu"), "bleu_tokenize": "13a", "flag": "--x"}
    told = "the references look tokenised; with --x=none, BLEU compares their words as they are"
    assert hint(lines, **given) == told
    assert hint(["a b .", "b."], **given) == hint([], **given) == ""
    assert hint(lines, **{**given, "bleu_tokenize": "none"}) == hint(lines, **{**given, "metrics": ("chrf",)}) == ""


def test_the_tokeniser_is_used_and_signed():
    hypotheses, references = ["so it is, yes!"], ["so it is , yes !"]
    plain, split = (scoring.score(hypotheses, [references], bleu_tokenize=name)["bleu"] for name in ("none", "13a"))
    assert plain.value < 50 < split.value == pytest.approx(100)
    assert "tok:none" in plain.note
    assert "tok:13a" in split.note


@pytest.mark.parametrize("name", sorted(set(TOKENIZERS) - set(PACKAGES)))
def test_tokenisers_need_no_download(name):
    assert score(REFERENCES, REFERENCES, bleu_tokenize=name)["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(("name", "extra"), [("ja-mecab", "ja"), ("ko-mecab", "ko")])
def test_a_missing_package_is_named(name, extra, monkeypatch):
    module = f"sacrebleu.tokenizers.tokenizer_{name.replace('-', '_')}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.setitem(sys.modules, "mecab_ko", None)
    with pytest.raises(UserError, match=rf"bleu_tokenize is '{name}', .* pip install 'sacrebleu\[{extra}\]'$"):
        score(REFERENCES, REFERENCES, bleu_tokenize=name)


def test_an_unknown_tokeniser_is_refused():
    with pytest.raises(UserError, match=r"^bleu_tokenize is 'int'; did you mean 'intl'\?$"):
        score(REFERENCES, REFERENCES, bleu_tokenize="int")
    with pytest.raises(UserError, match=r"^bleu_tokenize is 'moses'; available: 13a, char, intl, ja-mecab, .*, zh$"):
        score(REFERENCES, REFERENCES, bleu_tokenize="moses")


def test_lines_must_pair_up():
    with pytest.raises(UserError, match=r"^there are no references: expected one or more lists with a text for every"):
        scoring.score(["a b"], [])
    with pytest.raises(UserError, match="there are 3 hypotheses for 4 references: their numbers must be equal"):
        score(HYPOTHESES[:3], REFERENCES)


def test_nothing_to_score_is_refused():
    with pytest.raises(UserError, match="no sentences to score: hypotheses and references need at least one line"):
        score([], [])


def test_the_report_shows_scores_and_signatures():
    scores = [
        Score("bleu", "BLEU", 34.567, "nrefs:1|tok:13a"),
        Score("chrf", "chrF2", 60.0, "nc:6"),
        Score("exact_match", "exact match", 99.1, "% of 1000 sentences"),
    ]
    assert report({s.key: s for s in scores}).splitlines() == [
        "BLEU         34.57  nrefs:1|tok:13a",
        "chrF2        60.00  nc:6",
        "exact match  99.10  % of 1000 sentences",
    ]


def test_metrics_are_chosen_by_name_and_misspelt_ones_refused():
    assert list(score(HYPOTHESES, REFERENCES, metrics=["exact", "d2l_bleu"])) == ["exact_match", "d2l_bleu"]
    with pytest.raises(UserError, match=r"^metrics contains 'rogue'; did you mean 'rouge'\?$"):
        score(HYPOTHESES, REFERENCES, metrics=["rogue"])


@pytest.mark.parametrize("name", scoring.METRICS)
def test_a_metric_has_the_keys_that_it_says(name):
    found = scoring.score(["a cat sat"], [["a cat sat"]], metrics=(name,))
    assert tuple(found) == scoring.METRICS[name].keys


def test_of_several_references_any_may_be_met():
    """Exact match: any; BLEU: each n-gram as often as in the reference that has most; chrF: the best of each line."""
    one, other = ["a b c d e", "x"], ["e d c b a", "the cat sat on the mat"]
    hypotheses = ["a b c d e", "the cat sat on the mat"]
    both = scoring.score(hypotheses, [one, other])
    assert {key: s.value for key, s in both.items()} == pytest.approx({"bleu": 100, "chrf": 100, "exact_match": 100})
    assert "nrefs:2" in both["bleu"].note
    assert score(hypotheses, one)["exact_match"] == 50
    assert (
        score(["the the cat"], ["the dog the"], ["a cat"])["bleu"]
        == score(["the the cat"], ["a cat"], ["the dog the"])["bleu"]
    )


def test_a_line_is_missing_in_one_of_several_references():
    with pytest.raises(UserError, match="there are 4 hypotheses for 3 references: their numbers must be equal"):
        score(HYPOTHESES, REFERENCES, REFERENCES[:3])
