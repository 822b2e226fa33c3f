"""Filters of the training text against loops with sets, and what is told of them."""

import itertools
import random
import sys
import unicodedata
from collections import Counter

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.text import normalizer
from convs2s_jax.data import corpora, filters, lines, parallel_text
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.filters import FilterConfig

ALL = {
    **{"unit": "words", "min_length": 1, "max_length": 5, "max_ratio": 1.5, "drop_identical": True},
    **{"scripts": [["Latin"], ["Cyrillic", "Han"]], "script_share": 0.6},
    "drop_repeated": ["targets", "pairs", "sources"],
}
WORDS = ["a", "é", "bc", "ж", "дж", "漢", "、", "7", "ab漢", "\u200b", "\xad", "\xa0", "ａ"]


def drawn(seed, count=400):
    """Random pairs, many of them repeated."""
    rng = random.Random(seed)
    some = [" ".join(rng.choices(WORDS, k=rng.choice([0, 1, 2, 2, 3, 4, 7]))) for _ in range(60)]
    sides = [some, [line for line in some if rng.random() < 0.9 or line.isascii()]]
    return [(rng.choice(sides[0]), rng.choice(sides[1])) for _ in range(count)]


def write(folder, pairs):
    for side, name in enumerate(("de", "en")):
        (folder / f"train.{name}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return DataConfig(src="de", tgt="en", dir=str(folder), hold_out=0.0)


def expected(cfg, pairs):
    """The reason for which each pair is left out, or ""."""
    seen = {kind: set() for kind in ("pairs", "sources", "targets")}

    def clean(line):
        line = line.replace("\xa0", " ").replace("\u200b", " ").replace("\xad", "")
        return line.strip()

    def is_other(text, scripts):
        letters = [c for c in text if unicodedata.category(c)[0] == "L"]
        own = [c for c in letters if any(regex.match(rf"\p{{Script={script}}}", c) for script in scripts)]
        return bool(scripts) and bool(letters) and len(own) / len(letters) < cfg.script_share

    def reason(src, tgt):
        src, tgt = clean(src), clean(tgt)
        few, many = sorted(len(text.split()) if cfg.unit == "words" else len(text) for text in (src, tgt))
        if few < cfg.min_length:
            return "too short"
        if cfg.max_length and many > cfg.max_length:
            return "too long"
        if cfg.max_ratio and many and (not few or many / few > cfg.max_ratio):
            return "of different lengths"
        if cfg.drop_identical and src == tgt:
            return "with identical sides"
        if is_other(src, cfg.scripts[0]) or is_other(tgt, cfg.scripts[1]):
            return "in another script"
        for kind, key in (("pairs", (src, tgt)), ("sources", src), ("targets", tgt)):
            if kind in cfg.drop_repeated and key in seen[kind]:
                return f"repeated {kind}"
            seen[kind].add(key)
        return ""

    return [reason(*pair) for pair in pairs]


@pytest.mark.parametrize("hold_out", [0.0, 0.2])
@pytest.mark.parametrize(
    "values",
    [
        ALL,
        {**ALL, "unit": "characters", "min_length": 0, "max_length": 12},
        *({k: ALL[k]} for k in ("max_ratio", "scripts", "drop_repeated")),
    ],
    ids=lambda values: ",".join(values)[:20],
)
def test_what_is_left_out_is_what_a_loop_leaves_out(tmp_path, monkeypatch, values, hold_out):
    """In any blocks, in memory or not; messages name the line of the file, also of lines held out for validation."""
    for module, name, value in ((corpora, "BLOCK", 7), (lines, "BLOCK", 5), (lines, "FEW", 11), (filters, "_PART", 9)):
        monkeypatch.setattr(module, name, value)
    pairs = drawn(len(values))
    plain = write(tmp_path, pairs)
    cfg = DataConfig(**{**vars(plain), "filters": values, "hold_out": hold_out})
    reasons = expected(cfg.filters, pairs)
    train, valid = parallel_text.read_train_and_valid(cfg, tmp_path / "cache")
    kept = [pair for pair, reason in zip(pairs, reasons, strict=True) if not reason]
    assert 0 < len(kept) < len(pairs)
    assert {reason: count for reason, (count, _) in train.dropped.items()} == {**Counter(filter(None, reasons))}
    assert len(train) + len(valid) + valid.copies == len(kept)
    if not hold_out:
        assert [*zip(train.src, train.tgt, strict=True)] == kept
    for text in (train, valid):
        for i, pair in enumerate(zip(text.src, text.tgt, strict=True)):
            number = int(text.where(i).removesuffix(", held out for validation").split("train.en, line ")[1])
            assert pairs[number - 1] == pair
            assert not reasons[number - 1]
    for reason, (_, examples) in train.dropped.items():
        assert [*examples] == [(i, *pairs[i]) for i, other in enumerate(reasons) if other == reason][:3]
    assert parallel_text.read(plain, "train").dropped == {}
    assert [*parallel_text.read(cfg, "train").src] == [*train.src]  # in memory


def test_damaged_lines_and_sides_without_text():
    """A side of labels, or one that is empty, has no length and no script."""
    one = filters.Filter(FilterConfig(min_length=2, scripts=[[], ["Latin"]]), (0,), None)
    assert one.keep([(None, "x"), ("a b", "ж"), ("c d", None), ("e", "y")]) == [("a b", "ж")]
    left, rows, dropped = one.finish(["a b"], ["ж"])
    assert (left.tolist(), rows.tolist()) == ([True], [1])
    assert dropped == {"damaged": (2, ((0, "", "x"), (2, "c d", ""))), "too short": (1, ((3, "e", "y"),))}


def test_parts_of_a_mixture_have_the_lines_that_are_left(tmp_path):
    """The same source with another tag is another source."""
    pair = tuple(
        f"{write(tmp_path, [('a', 'b'), ('c d', 'e f'), ('a', 'g')]).dir}/train.{side}" for side in ("de", "en")
    )
    mixture = [{"files": [pair], "tag": "<1>"}, {"files": [pair], "tag": "<2>"}, {"files": [pair], "tag": "<1>"}]
    cfg = DataConfig(src="de", tgt="en", mixture=mixture, filters={"drop_repeated": ["sources"], "max_length": 1})
    text = parallel_text.read(cfg, "train")
    assert (text.src, text.parts, text.rows.tolist()) == (["<1> a", "<2> a"], (1, 1, 0), [0, 3])


def test_scripts_are_those_of_unicode():
    """But of a few letters whose names begin in another way."""
    rare = ("MODIFIER LETTER", "HENTAIGANA", "SUBSCRIPT", "MASCULINE", "FEMININE", "TURNED", "LIMBU", "KELVIN")
    letters = "".join(c for c in map(chr, range(0x110000)) if unicodedata.category(c)[0] == "L")
    script_of = {c: filters.script_of(c) for c in letters}
    for script in filters.Script.__args__:
        found = {c for c in letters if script_of[c] == script}
        odd = found ^ {*regex.findall(rf"\p{{Script={script}}}", letters)}
        assert len(found) > 20
        odd = [name for name in map(unicodedata.name, sorted(odd)) if not name.startswith(rare)]
        assert len(odd) < 8, odd


def test_another_language_is_left_out():
    pytest.importorskip("py3langid")
    one = filters.Filter(FilterConfig(languages=["de", "en"]), (0, 1), None)
    german, english = "Der Hund schläft heute unter dem alten Baum.", "The dog is sleeping under the old tree today."
    pairs = [(german, english), (english, english), (german, german), ("12:30", "?")]
    assert one.keep(pairs) == [pairs[0], pairs[3]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_ratio": 0.5}, "max_ratio is 0.5: use 0 for no limit, or at least 1"),
        ({"min_length": 9, "max_length": 5}, "max_length is 5: use 0 for no limit, or at least 9"),
        ({"script_share": 0.0}, "script_share is 0.0: use more than 0, and at most 1"),
        ({"languages": ["", "xx"]}, "data.filters: py3langid does not know the language 'xx'; "),
        ({"min_length": 99}, r"the train split of the corpus is empty: .*lines \(400 too short\)$"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, values, message):
    with pytest.raises(UserError, match=message):
        parallel_text.read(DataConfig(**{**vars(write(tmp_path, drawn(1))), "filters": values}), "train")


@pytest.mark.parametrize(
    ("values", "package"),
    [({"filters": {"languages": ["de", ""]}}, "py3langid"), ({"normalize": ["moses"]}, "sacremoses")],
)
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, values, package):
    monkeypatch.setitem(sys.modules, package, None)
    normalizer.cache_clear()
    with pytest.raises(UserError, match=rf"needs {package}: pip install '\.\[(language-id|moses)\]'$"):
        parallel_text.read(DataConfig(**{**vars(write(tmp_path, drawn(1))), **values}), "train")


@given(st.text(min_size=1, alphabet="ab 1(),.:;%-_`'\"„“”–—´‘’‚…«»\xa0ｂ％（２"), st.permutations(["nfkc", "moses"]))
@example("``(a ) . ％", ["moses", "nfkc"])
def test_normalised_text_stays_as_it_is(text, rules):
    """And is that of the library, whose rules are applied until nothing changes."""
    clean, moses = normalizer(tuple(rules)), pytest.importorskip("sacremoses").MosesPunctNormalizer
    assert clean(clean(text)) == clean(text)
    library = moses(norm_quote_commas=False, norm_numbers=False).normalize
    for one in (text, f"a{text[:1]}b"):
        slow = one
        for rule in itertools.islice(itertools.cycle(rules), 20):
            slow = unicodedata.normalize("NFKC", slow) if rule == "nfkc" else library(slow)
        assert clean(one) == slow


def test_the_report_shows_what_is_left_out(tmp_path, capsys):
    pairs = [("ein <b>", "a b"), ("x", "y z"), ("ein <b>", "a b"), ("zwei c", "a d")]
    write(tmp_path, pairs)
    flags = {"src": "de", "tgt": "en", "dir": tmp_path, "hold_out": "0.3", "filters.min_length": "2"}
    flags |= {"filters.drop_repeated": "['pairs']", "normalize": "['nfkc']"}
    given = [f"--config.data.{name}={value}" for name, value in flags.items()]
    COMMANDS["data report"].run(["convs2s", "--config=your_text", *given])
    place = f"{tmp_path}/train.en, line"
    assert capsys.readouterr().out.splitlines() == [
        "kept  1  25.00%",
        "held out, with copies  1  25.00%",
        "too short  1  25.00%",
        f"  {place} 2  x  y z",
        "repeated pairs  1  25.00%",
        f"  {place} 3  ein <b>  a b",
    ]
