"""`convs2s prepare` leaves what the training that follows would make first, and nothing else."""

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.data import parallel_text, processes, tokens_on_disk
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.training.run.loop import train
from tests import tiny
from tests.processes import called
from tests.stores import bucket  # noqa: F401  (a fixture)


def test_a_training_finds_what_was_prepared(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda _: pytest.fail("short text takes no process"))
    workdir, config = tmp_path / "run", tiny.config_file(tmp_path)
    COMMANDS["prepare"].run(["convs2s prepare", f"--config={config}", f"--workdir={workdir}"])
    told = capsys.readouterr().err.splitlines()
    [learned] = (workdir / "cache" / "vocab").iterdir()
    assert told[0] == f"learning the vocabularies from the training text: {learned}"
    assert told[-2].startswith("batches: ")
    assert told[-1] == "prepared: convs2s train with the same flags continues from here"
    assert [path.name for path in workdir.iterdir()] == ["cache"]
    kept = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.tokens")}
    train(tiny.config(training__max_steps=1), workdir)
    log = (workdir / "train.log").read_text()
    assert "reusing the vocabularies that an earlier start learned" in log
    assert all(sentence in log for sentence in told[1:-1])
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*.tokens")} == kept


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A configuration of 200 lines, which are four ranges, and what prepares it in a new workdir."""
    monkeypatch.setattr(tokens_on_disk, "RANGE", 64)
    for split in ("train", "valid"):
        lines = [
            " ".join(f"w{(i * j) % 17}" for j in range(1, i % 30 + 2)) for i in range(200 if split == "train" else 9)
        ]
        for side in ("in", "out"):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    words = {"kind": "words", "min_count": 1}
    config = tiny.config_file(tmp_path, **tiny.files(tmp_path), data__workers=1, data__vocabulary=words)

    def prepare(name, *flags):
        workdir = tmp_path / name
        COMMANDS["prepare"].run(["convs2s prepare", f"--config={config}", f"--workdir={workdir}", *flags])
        return {path.name: path.read_bytes() for path in (workdir / "cache").glob("*.tokens")}

    return prepare


@pytest.mark.parametrize("shared", ["folder", "store"])
def test_parts_of_several_machines_make_the_files_of_one(corpus, tmp_path, monkeypatch, capsys, bucket, shared):  # noqa: F811
    """In a shared folder, or with no folder in common and a store; a later machine only fetches."""
    whole = corpus("whole")
    store = ["--config.data.cache_dir=gs://bucket/cache"] if shared == "store" else []
    for part in (3, 1, 2):
        corpus(f"{part}" if store else "parts", f"--part={part}/3", *store)
        count = len(range(part - 1, 8, 3))
        assert f"part {part} of 3 is done ({count} of 8 ranges): when all parts are, run" in capsys.readouterr().err
    assert corpus("last" if store else "parts", *store) == whole
    if store:
        monkeypatch.setattr(parallel_text, "read", lambda *_, **__: ParallelText((), (), "test"))
        assert corpus("later", *store) == whole


@pytest.mark.drill
def test_a_ray_cluster_makes_the_files_of_one_process(corpus, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert corpus("cluster", "--engine=ray") == corpus("whole")


PREPARE, CONFIG = ["prepare", "--config=cldr_en_de", "--workdir=a"], ["config", "--config=cldr_en_de"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["prepare", "--config=cldr_en_de"], "--workdir is missing, as in --config=cldr_en_de --workdir=runs/a"),
        (["prepare", "--config=x", "--workdir=gs://a/b"], "--workdir is gs://a/b: gs:// is not supported here"),
        (
            [*PREPARE, "--config.mesh.rules=[['conf/w', [None, None, 'tensor']]]"],
            "mesh.rules[0].path is 'conf/w': it matches no parameter that earlier rules leave",
        ),
        (
            [*PREPARE, "--config.mesh.rules=[['b', [None]]]", "--config.parallel=pmap"],
            "mesh.rules is set with parallel=pmap, which replicates all parameters; drop it, or use jit",
        ),
        (
            [*PREPARE, "--config.mesh.gather_once=['w']"],
            "mesh.gather_once is ['w']: this version has no such field; leave it out, or use version f02697ce",
        ),
        ([*PREPARE, "--part=9/8"], "--part=9/8: use i/N, the i-th of N parts, as in --part=1/8"),
        ([*PREPARE, "--config.training.bleu_tokenize=13b"], "bleu_tokenize is '13b'; did you mean"),
        ([*PREPARE, "--config.search.beam_size=0"], "search.beam_size is 0: use a value between"),
        ([*PREPARE, "--config.data.dir=b"], "data.dir is set, but data.corpus 'cldr'"),
        (["config", "--config.seed=2"], "--config.seed: there is no configuration to change; add --config=NAME"),
        ([*CONFIG, "--source", "--config.seed=2"], "--config.seed with --source: the file is printed unchanged;"),
        ([*CONFIG, "--shardings=0"], "--shardings=0: use 1 or more devices"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, flags, sentence):
    monkeypatch.chdir(tmp_path)
    ended = called(COMMANDS[flags[0]].run, *flags)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert not list(tmp_path.iterdir())
