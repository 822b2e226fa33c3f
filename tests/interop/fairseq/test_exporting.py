"""Workdirs to checkpoints of fairseq: nothing is lost on a round trip, and on a mistake no file is written."""

import argparse
import math
import sys

import numpy as np
import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.config import build, literal
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import derived_workdir, position_file, restoring
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.loop import train
from tests import tiny
from tests.helpers import drills_but
from tests.interop.fairseq import examples
from tests.processes import called


@pytest.fixture
def file(tmp_path):
    return examples.save(tmp_path, examples.whole())


def loaded(path):
    """The content of a checkpoint, by torch alone."""
    torch = pytest.importorskip("torch")
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    "name", drills_but(["fconv_04_share_embed_nopad", "fconv_07_even_kernels"], kept=["fconv_07_even_kernels"])
)
def test_import_export_import_is_exact(name, tmp_path):
    _, args, tensors = examples.case(name)
    file = examples.save(tmp_path, examples.content(tensors, args, examples.buffers(tensors)))
    examples.bring_in(file, tmp_path / "one")
    examples.take_out(tmp_path / "one", tmp_path / "out" / "again.pt")
    examples.bring_in(tmp_path / "out" / "again.pt", tmp_path / "two")
    found = [tiny.digests(tmp_path / run, examples.UPDATES) for run in ("one", "two")]
    assert all(found[0][part] == found[1][part] for part in ("params", "optimizer"))
    (_, _, _, one), (_, _, _, two) = (examples.held(tmp_path / run) for run in ("one", "two"))
    names = one.pop(derived_workdir.IMPORTED), two.pop(derived_workdir.IMPORTED)
    assert names == ([str(file)], [str(tmp_path / "out" / "again.pt")])
    assert one | {"digests": {}} == two | {"digests": {}}
    assert (tmp_path / "one" / "config.json").read_text() == (tmp_path / "two" / "config.json").read_text()
    for language in ("de", "en"):
        same = f"dict.{language}.txt"
        assert (tmp_path / same).read_bytes() == (tmp_path / "out" / same).read_bytes()
    again = loaded(tmp_path / "out" / "again.pt")["model"]
    assert list(again) == list(tensors)  # in fairseq's order
    for name, value in tensors.items():
        assert again[name].numpy().dtype == np.float32
        np.testing.assert_array_equal(again[name].numpy(), value)


@pytest.mark.parametrize("name", ["fconv_07_even_kernels", "dynamicconv_01_glu"])
def test_an_export_without_momentum_keeps_the_number_of_updates(name, tmp_path):
    """fairseq takes it from a file only together with a state of the optimiser, which may be empty."""
    torch = pytest.importorskip("torch")
    _, args, tensors = examples.case(name)
    adam = {"optimizer": "adam", "adam_betas": "(0.9, 0.98)", "lr": [5e-4], "lr_scheduler": "inverse_sqrt"}
    light = {"arch": "lightconv", "warmup_updates": 4000, **adam} if name == "dynamicconv_01_glu" else {}
    values = examples.content(tensors, args | light)
    examples.bring_in(examples.save(tmp_path, values), tmp_path / "run")
    examples.take_out(tmp_path / "run", tmp_path / "out" / "x.pt", momentum=False)
    content = loaded(tmp_path / "out" / "x.pt")
    assert content["optimizer_history"][-1]["num_updates"] == examples.UPDATES
    trained = [value for key, value in content["model"].items() if not key.endswith(".version")]
    if light:
        assert content["optimizer_history"][-1]["optimizer_name"] == "FairseqAdam"
        optimizer = torch.optim.Adam([torch.nn.Parameter(value) for value in trained], lr=1.0)
        optimizer.load_state_dict(content["last_optimizer_state"])  # refuses another number of parameters
        [group] = optimizer.param_groups
        assert (group["betas"], group["eps"], group["lr"]) == ((0.9, 0.98), 1e-8, pytest.approx(5e-4 * 40 / 4000))
    else:
        [group] = content["last_optimizer_state"]["param_groups"]
        assert group["params"] == list(range(len(trained)))
        assert {"lr", "lr_old", "momentum", "weight_decay"} < set(group)
    again = examples.bring_in(tmp_path / "out" / "x.pt", tmp_path / "again")
    assert "momentum starts from zero" in " ".join(again)
    assert examples.held(tmp_path / "again")[3]["step"] == examples.UPDATES


@pytest.mark.parametrize(
    ("smoothing", "best"),
    drills_but([(0.0, 3.25), (0.0, None), (0.1, 3.25)], kept=[(0.0, 3.25)]),
)
def test_the_best_loss_of_a_plateau_comes_and_goes_where_it_is_the_same_loss(tmp_path, smoothing, best):
    """In bits there and in nats here."""
    _, args, tensors = examples.case("fconv_07_even_kernels")
    criterion = {"criterion": "label_smoothed_cross_entropy", "label_smoothing": smoothing} if smoothing else {}
    args = {**args, "lr_scheduler": "reduce_lr_on_plateau", "lr": [0.5], **criterion}
    content = examples.content(tensors, args, examples.buffers(tensors))
    content["optimizer_history"][-1]["lr_scheduler_state"]["best"] = best
    examples.bring_in(examples.save(tmp_path, content), tmp_path / "run")
    kept = 3.25 if best == 3.25 and not smoothing else math.inf
    [place] = run_folder.finished(run_folder.checkpoints(tmp_path / "run")).values()
    assert position_file.read(place)["schedule"]["best"] == pytest.approx(kept * math.log(2))
    examples.take_out(tmp_path / "run", tmp_path / "out" / "again.pt")
    written = loaded(tmp_path / "out" / "again.pt")["optimizer_history"][-1]["lr_scheduler_state"]["best"]
    assert written == pytest.approx(kept)


@pytest.mark.drill
def test_an_export_has_the_keys_of_fairseqs_own_checkpoint(golden, tmp_path):
    torch = pytest.importorskip("torch")
    own = golden / "beam_model" / "checkpoint_best.pt"
    examples.bring_in(own, tmp_path / "run")
    examples.take_out(tmp_path / "run", tmp_path / "out.pt")
    theirs, ours = loaded(own), loaded(tmp_path / "out.pt")
    assert set(ours) == set(theirs)
    assert list(ours["model"]) == list(theirs["model"])
    assert all(torch.equal(ours["model"][name], value) for name, value in theirs["model"].items())
    last = theirs["optimizer_history"][-1]
    assert set(ours["optimizer_history"][-1]) == set(last)
    for field in ("criterion_name", "optimizer_name", "num_updates"):
        assert ours["optimizer_history"][-1][field] == last[field]
    assert ours["extra_state"]["train_iterator"] == theirs["extra_state"]["train_iterator"]
    groups = [content["last_optimizer_state"]["param_groups"][0] for content in (ours, theirs)]
    assert set(groups[0]) == set(groups[1])
    for field in ("lr", "momentum", "weight_decay", "params"):
        assert groups[0][field] == groups[1][field]
    for i, buffer in theirs["last_optimizer_state"]["state"].items():
        # a buffer carries -lr_old: what counts is their quotient
        mine = ours["last_optimizer_state"]["state"][i]["momentum_buffer"] / groups[0]["lr_old"]
        torch.testing.assert_close(mine, buffer["momentum_buffer"] / groups[1]["lr_old"], rtol=1e-6, atol=0.0)
    model = vars(theirs["cfg"]["model"])
    for name, value in vars(ours["args"]).items():
        if name in ("encoder_layers", "decoder_layers"):
            assert literal(value) == literal(model[name])
        elif name not in ("data", "max_epoch"):
            assert value == model[name], name


@pytest.mark.drill
def test_a_run_of_train_is_exported_with_its_subword_units(tmp_path):
    """SentencePiece vocabularies become dictionaries of the same ids, and the model goes beside them."""
    pytest.importorskip("torch")
    train(tiny.config(training__max_steps=1), tmp_path / "run")
    told = examples.take_out(tmp_path / "run", tmp_path / "out" / "x.pt")
    assert "x.pt: wrote step 1 of " in told[-1]
    own = examples.held(tmp_path / "run")[1]
    spm = [tmp_path / "out" / f"spm.{name}.model" for name in ("en", "de")]
    examples.bring_in(tmp_path / "out" / "x.pt", tmp_path / "again", src_spm=str(spm[0]), tgt_spm=str(spm[1]))
    again = examples.held(tmp_path / "again")[1]
    lines = ["5 kilowatts", "January 3, 2024", "Norway and Sweden"]
    for mine, theirs in ((own.src, again.src), (own.tgt, again.tgt)):
        assert [mine.token(i) for i in range(4, mine.size)] == [theirs.token(i) for i in range(4, theirs.size)]
        assert mine.encode(lines) == theirs.encode(lines)
        assert [mine.decode(ids) for ids in mine.encode(lines)] == [theirs.decode(i) for i in theirs.encode(lines)]
    for part in ("params", "optimizer"):
        assert tiny.digests(tmp_path / "run", 1)[part] == tiny.digests(tmp_path / "again", 1)[part]


def test_exports_that_are_refused_leave_nothing(file, tmp_path, monkeypatch):
    examples.bring_in(file, tmp_path / "run")
    out = tmp_path / "out"
    out.mkdir()

    def stays(sentence, there=(), **options):
        with pytest.raises(UserError, match=sentence):
            examples.take_out(**{"workdir": tmp_path / "run", "output": out / "x.pt", **options})
        assert sorted(path.name for path in out.iterdir()) == [*there]

    stays("both sides are named 'en': .* set --source_lang", source_lang="en")
    stays("has no checkpoint of step 3; it has 40", step=3)
    stays("contains no config.json", workdir=out)
    stays("out already exists; choose another file", output=out)
    labels = tmp_path / "labels"
    labels.mkdir()
    data = {"corpus": "tsv", "dir": "x"}
    run_folder.write_config(labels, build(Config, {"data": data, "model": {"kind": "classifier", "embedding_dim": 8}}))
    stays("model.kind is 'classifier', which does not translate", workdir=labels)
    (out / "dict.de.txt").write_text("mine\n")
    stays("x.pt would overwrite dict.de.txt; choose a file in a new folder", ["dict.de.txt"])
    assert (out / "dict.de.txt").read_text() == "mine\n"
    (out / "x.pt").write_text("mine")
    monkeypatch.setattr(restoring, "restore_items", lambda *_, **__: pytest.fail("it was restored first"))
    stays("x.pt already exists; choose another file", ["dict.de.txt", "x.pt"])
    monkeypatch.setitem(sys.modules, "torch", None)
    stays("writing fairseq checkpoints needs torch", ["dict.de.txt", "x.pt"], output=out / "y.pt")


# The command line.


def convs2s(command, *arguments):
    """`convs2s COMMAND` within this process."""
    return called(lambda given: COMMANDS[command].run([f"convs2s {command}", *given]), *arguments)


BOTH = ["import", "--checkpoint=a", "--dicts=b", "--workdir=c"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["import", "--dicts=x"], "--checkpoint is missing: import needs --checkpoint and --dicts and --workdir"),
        (["import", "--checkpiont=a"], "--checkpiont is not a flag of this command; did you mean 'checkpoint'?"),
        (
            ["import", "--checkpoint=gs://b/a.pt"],
            "--checkpoint is gs://b/a.pt: gs:// is not supported here; use a path",
        ),
        (["export", "--output=y.pt"], "--workdir is missing: export needs --workdir and --output"),
        (["export", "--workdir=x", "--output=y.pt", "--config.seed=3"], "--config.seed: an export uses the config"),
        ([*BOTH, "--src_spm=d"], "--src_spm and --tgt_spm go together"),
        ([*BOTH, "--bpe_codes=d,e,f"], "--bpe_codes lists 3 files; specify one for both sides, or two as SRC,TGT"),
        ([*BOTH, "--src_spm=d", "--tgt_spm=e", "--bpe_codes=f"], "--bpe_codes and --src_spm both split text into"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence_and_status_2(arguments, sentence):
    result = convs2s(*arguments)
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1].startswith(f"convs2s {arguments[0]}: ")
    assert sentence in result.stderr


@pytest.mark.drill
def test_there_and_back_by_the_command_line(file, tmp_path, isolated):
    run, out = tmp_path / "run", tmp_path / "out"
    wanted = "--config.training.keep=5"
    result = convs2s("import", f"--checkpoint={file}", f"--dicts={tmp_path}", f"--workdir={run}", wanted)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert run_folder.load_config(run).training.keep == 5
    expected = f"{run}: step 40, epoch 2; translate with convs2s decode --workdir={run}"
    assert result.stderr.splitlines()[-1].startswith(expected)
    out.mkdir()
    result = convs2s("export", f"--workdir={run}", f"--output={out}/x.pt")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert sorted(path.name for path in out.iterdir()) == ["dict.de.txt", "dict.en.txt", "x.pt"]
