"""Metrics against counts by hand, several references, and what is refused."""

import math
import random
import sys
from collections import Counter

import pytest
from sacrebleu import metrics

from convs2s_jax.core.errors import UserError
from convs2s_jax.metrics import scoring
from convs2s_jax.metrics.scoring import METRICS, PACKAGES, TOKENIZERS, Scorer

HYPOTHESES = ["the cat sat on the mat", "there is a dog here", "the the the the the", "yes it is so"]
REFERENCES = ["the cat sat on a mat today", "there is a dog here", "the old man and the sea again", "yes it is so"]


def score(hypotheses, *references, **options):
    """Values by key."""
    return {key: s.value for key, s in scoring.score(hypotheses, references, **options).items()}


def hint(references, *, metrics, bleu_tokenize, flag):
    scorer = Scorer(metrics, bleu_tokenize)
    scorer.add(references, [references])
    return scorer.hint(flag)


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


@pytest.mark.parametrize("hypotheses", [HYPOTHESES, [f"{text} and so on" for text in REFERENCES]])
def test_bleu_is_papinenis_and_chrf_is_popovics(hypotheses):
    found = score(hypotheses, REFERENCES)
    assert found["bleu"] == pytest.approx(bleu_by_hand(hypotheses, REFERENCES), rel=1e-9)
    assert found["chrf"] == pytest.approx(chrf_by_hand(hypotheses, REFERENCES), rel=1e-9)


@pytest.mark.parametrize(
    ("hypotheses", "references", "edits", "words"),
    [
        (["c d a b e"], [["a b c d e"]], 1, 5),  # a run moves: without moves there would be 4 edits
        (["x b"], [["a b c"]], 2, 3),  # one replaced, one missing
        (["A b c d e", "u"], [["a b", "u v"]], 3 + 1, 2 + 2),  # of the corpus, in lower case
        (["a b c"], [["a x y"], ["a b c d e"]], 2, 4),  # the fewest edits, over the mean length
    ],
)
def test_ter_is_snovers(hypotheses, references, edits, words):
    assert score(hypotheses, *references, metrics=["ter"]) == pytest.approx({"ter": 100 * edits / words})


def test_exact_match_counts_whole_sentences():
    assert score(HYPOTHESES, REFERENCES)["exact_match"] == 50
    assert score(["a b", "", "ab"], ["\ufeff a\xa0\u2028 b ", "\u3000 ", "a\xadb"])["exact_match"] == 100
    assert score(["a b"], ["ab"])["exact_match"] == 0


def f1(hits, ours, theirs):
    return 100 * 2 * hits / (ours + theirs)


@pytest.mark.parametrize(
    ("hypotheses", "references", "expected"),
    [
        # killed and kill have one stem; unigrams 4 of 4 and 5, bigrams 3 of 3 and 4, common subsequence 4; then nothing
        (
            ["police killed the gunman", "a b"],
            [["police kill the gunman now", "c"]],
            (f1(4, 4, 5) / 2, f1(3, 3, 4) / 2, f1(4, 4, 5) / 2),
        ),
        (["the gunman police killed"], [["police killed the gunman"]], (100, f1(2, 3, 3), 50)),
        (["red car", "green tree"], [["red car", "no"], ["blue sky", "green tree"]], (100, 100, 100)),  # the best
    ],
)
def test_rouge_is_lins(hypotheses, references, expected):
    pytest.importorskip("rouge_score")
    found = score(hypotheses, *references, metrics=["rouge"])
    assert found == pytest.approx(dict(zip(("rouge1", "rouge2", "rougel"), expected, strict=True)))


def test_a_hint_tells_of_tokenised_references_in_place_of_sacrebleus_warning(caplog):
    lines = ["a b c d .", "e ?", "f"] * 50
    score(lines, lines, metrics=["bleu"], bleu_tokenize="13a")
    assert caplog.text == ""
    given = {"metrics": ("chrf", "bleu"), "bleu_tokenize": "13a", "flag": "--x"}
    told = "the references look tokenised; with --x=none, BLEU compares their words as they are"
    assert hint(lines, **given) == told
    assert hint(["a b .", "b."], **given) == hint(["b."], **given) == ""
    assert hint(lines, **{**given, "bleu_tokenize": "none"}) == hint(lines, **{**given, "metrics": ("chrf",)}) == ""


def test_the_tokeniser_is_used_and_signed():
    hypotheses, references = ["so it is, yes!"], ["so it is , yes !"]
    plain, split = (scoring.score(hypotheses, [references], bleu_tokenize=name)["bleu"] for name in ("none", "13a"))
    assert plain.value < 50 < split.value == pytest.approx(100)
    assert "tok:none" in plain.note
    assert "tok:13a" in split.note


@pytest.mark.parametrize(
    ("references", "tokenizer"),
    [
        (["今日は天気がいいですね。", "東京へ行きます"], "char"),  # ja-mecab is not installed
        (["今天天气很好。", "我们去北京 (2024)"], "zh"),
        (["สวัสดีครับ"], "char"),
        (["안녕하세요 여러분"], "13a"),
        (["The Japanese word 日本 means Japan"], "13a"),
        (["12:30", ""], "13a"),
    ],
)
def test_the_script_of_the_references_chooses_a_tokeniser(references, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    found = scoring.score(references, [references], bleu_tokenize="auto")["bleu"]
    assert f"tok:{tokenizer}|" in found.note
    given = {"metrics": ["bleu"], "flag": "--x"}
    told = [hint(references, bleu_tokenize=name, **given) for name in ("auto", "13a", "intl")]
    assert [bool(sentence) for sentence in told] == [tokenizer != "13a"] * 2 + [False]
    assert tokenizer == "13a" or (tokenizer in told[0] and "--x=auto" in told[1])


def test_japanese_is_split_by_mecab_if_it_is_installed(monkeypatch):
    monkeypatch.setattr(scoring, "_sacrebleu", lambda *_: None)
    assert scoring.tokenizer_of(["これは本です"], "auto") == "ja-mecab"
    assert scoring.tokenizer_of(["これは本です"], "13a") == "13a"


@pytest.mark.parametrize("name", sorted(set(TOKENIZERS) - set(PACKAGES)))
def test_tokenisers_need_no_download(name):
    assert score(REFERENCES, REFERENCES, bleu_tokenize=name)["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "sentence"),
    [
        (["a"], [["a"]], {"bleu_tokenize": "int"}, r"^bleu_tokenize is 'int'; did you mean 'intl'\?$"),
        (["a"], [["a"]], {"metrics": ["rogue"]}, r"^metrics contains 'rogue'; did you mean 'rouge'\?$"),
        (["a"], [["a"]], {"metrics": ["rouge"]}, "^the metric 'rouge' needs another package: pip install rouge-score$"),
        (["a"], [["a"]], {"bleu_tokenize": "ja-mecab"}, r"^bleu_tokenize is 'ja-mecab', .* 'sacrebleu\[ja\]'$"),
        (["a"], [], {}, "^there are no sentences to score: hypotheses and references need at least one line$"),
        (["a", "b"], [["a", "b"], ["a"]], {}, "^there are 2 hypotheses for 1 references: their numbers must be equal$"),
    ],
)
def test_what_cannot_be_scored_is_refused(hypotheses, references, options, sentence, monkeypatch):
    for module in ("tokenizer_ja_mecab", "tokenizer_ko_mecab"):
        monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.{module}", raising=False)
    for package in ("MeCab", "mecab_ko", "rouge_score"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=sentence):
        scoring.score(hypotheses, references, **options)


def test_scores_of_a_text_in_pieces_are_those_of_the_whole(monkeypatch):
    """sacreBLEU's `corpus_score` of the whole is the reference; "auto" waits for enough references."""
    monkeypatch.setattr(scoring, "SAMPLE", 10)
    rng = random.Random(20261130)
    words = ["a", "b", "c d", "e.", "f", "g"]
    *other, hypotheses = ([" ".join(rng.choices(words, k=rng.randint(0, 9))) for _ in range(40)] for _ in range(3))
    other[0][3:10] = ["今天天气很好。" * 3 + text for text in other[0][3:10]]  # after the first piece
    names = [name for name in METRICS if name != "rouge"]
    scorer = Scorer(names, "auto")
    for first in (0, 3, 15, 16):
        last = {0: 3, 3: 15, 15: 16, 16: 40}[first]
        scorer.add(hypotheses[first:last], [lines[first:last] for lines in other])
    found = scorer.scores()
    for metric in (metrics.BLEU(tokenize="zh", force=True), metrics.CHRF(), metrics.TER()):
        whole = metric.corpus_score(hypotheses, other)
        mine = found[type(metric).__name__.lower()]
        assert (mine.value, mine.note) == (pytest.approx(whole.score, rel=1e-12), str(metric.get_signature()))
    assert found == scoring.score(hypotheses, other, metrics=names, bleu_tokenize="auto")


def test_of_several_references_any_may_be_met():
    """Exact match: any; BLEU: each n-gram as often as in the reference that has most; chrF: the best of each line."""
    one, other = ["a b c d e", "x"], ["e d c b a", "the cat sat on the mat"]
    both = scoring.score(["a b c d e", "the cat sat on the mat"], [one, other])
    assert {key: s.value for key, s in both.items()} == pytest.approx({"bleu": 100, "chrf": 100, "exact_match": 100})
    assert "nrefs:2" in both["bleu"].note
