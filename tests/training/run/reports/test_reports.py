"""What a run leaves to read: metrics.jsonl, TensorBoard events, the log."""

import json
import math
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.processes.interrupts import StoppedBeforeUpdateError
from convs2s_jax.training.run.reports import records
from convs2s_jax.training.run.reports.reports import Reports


def lines(workdir):
    """Of metrics.jsonl, each read as strict JSON, without their checksums."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (workdir / "metrics.jsonl").read_text(encoding="utf-8")
    found = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert all(isinstance(record.pop("checksum"), str) for record in found)
    return found


def events(workdir):
    """All events; a record is its length, a checksum, the event, a checksum."""
    for path in sorted((workdir / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield Event.FromString(data[12 : 12 + length])
            data = data[12 + length + 4 :]


def a_second_later(workdir, start):
    """Files of events have names by seconds and would be one; rename that of a start, as if the next came later."""
    [path] = (workdir / "tensorboard").glob("events*")
    path.rename(path.with_name(f"{start}.{path.name}"))


def scalars(workdir):
    """(tag, step, value) of all events."""
    return [(value.tag, event.step, value.simple_value) for event in events(workdir) for value in event.summary.value]


def shown(workdir, tag):
    """(step, value) of what TensorBoard shows: the start of a session hides earlier events of its step and later."""
    found = []
    for event in events(workdir):
        if event.session_log.status == SessionLog.START:
            found = [each for each in found if each[0] < event.step]
        found += [(event.step, value.simple_value) for value in event.summary.value if value.tag == tag]
    return found


def test_each_report_is_one_line_and_one_event_a_number(tmp_path):
    with Reports(tmp_path, step=0) as reports:
        reports.metrics(step=50, epoch=1, split="train", loss=2.0, learning_rate=0.25, compilations=7)
        assert len(lines(tmp_path)) == 1  # on disk at once
        reports.metrics(step=60, epoch=2, split="valid", loss=1.5, bleu=12.5)
    train = {"loss": 2.0, "perplexity": pytest.approx(math.exp(2.0)), "learning_rate": 0.25, "compilations": 7}
    valid = {"loss": 1.5, "perplexity": pytest.approx(math.exp(1.5)), "bleu": 12.5}
    assert lines(tmp_path) == [
        {"step": 50, "epoch": 1, "split": "train", **train},
        {"step": 60, "epoch": 2, "split": "valid", **valid},
    ]
    events = [(f"train/{name}", 50, value) for name, value in train.items()]
    assert scalars(tmp_path) == events + [(f"valid/{name}", 60, value) for name, value in valid.items()]


@pytest.mark.parametrize("loss", [1e4, math.inf])
def test_a_huge_loss_has_no_perplexity_and_no_overflow(tmp_path, loss):
    with Reports(tmp_path, step=0) as reports:
        reports.metrics(step=1, epoch=1, split="train", loss=loss)
    (line,) = lines(tmp_path)
    assert line["perplexity"] is None
    assert line["loss"] == (loss if math.isfinite(loss) else None)


def test_lines_beyond_the_resumed_step_are_dropped(tmp_path):
    with Reports(tmp_path, step=0) as reports:
        for step in (10, 20, 30, 40):
            reports.metrics(step=step, epoch=1, split="train", loss=float(step))
    a_second_later(tmp_path, 1)
    with Reports(tmp_path, step=20) as reports:
        assert [line["step"] for line in lines(tmp_path)] == [10, 20]
        reports.metrics(step=30, epoch=1, split="train", loss=0.5)
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(10, 10.0), (20, 20.0), (30, 0.5)]
    assert shown(tmp_path, "train/loss") == [(10, 10.0), (20, 20.0), (30, 0.5)]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_last_line_is_put_aside(tmp_path, cut, capsys):
    with Reports(tmp_path, step=0) as reports:
        for step in (10, 20):
            reports.metrics(step=step, epoch=1, split="train", loss=1.0)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: -1 - cut])
    capsys.readouterr()
    with Reports(tmp_path, step=20) as reports:
        assert capsys.readouterr().err == f"{path}: 1 line is damaged; put aside in metrics.jsonl.damaged\n"
        reports.metrics(step=30, epoch=1, split="train", loss=1.0)
    assert [line["step"] for line in lines(tmp_path)] == [10, 30]
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == whole.splitlines()[1][:-cut] + b"\n"
    assert "1 line is damaged" in (tmp_path / "train.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [b"\xa0", b"[]", b"{}", b'{"step": 3}', b"{", b"\x00"])
def test_what_is_no_report_is_not_read_as_one(tmp_path, text):
    with Reports(tmp_path, step=0) as reports:
        reports.metrics(step=10, epoch=1, split="test", loss=1.0)
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(text + b"\n" + path.read_bytes())
        assert reports.has(split="test", step=10)
        assert not reports.has(split="test", step=3)
        assert records.keep_up_to(tmp_path, 10) == [f"{path}: 1 line is damaged; put aside in metrics.jsonl.damaged"]


def test_the_log_has_the_lines_of_training_where_a_bar_is_shown_in_their_place(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Reports(tmp_path, step=0) as reports:
        reports.metrics(step=1, epoch=1, split="train", loss=2.0)
    [line] = (tmp_path / "train.log").read_text().splitlines()
    assert "step 1 epoch 1 train: loss 2, perplexity 7.389" in line
    shown = capsys.readouterr().err
    assert "perplexity 7.389" not in shown
    assert "epoch 1 loss 2.000]" in shown


def test_the_error_that_ends_a_training_is_in_its_log(tmp_path, capsys):
    """The user is told by the command; a stop before the first update is no failure."""

    def ended(step, error):
        with Reports(tmp_path, step=0) as reports:
            reports.advance(step, 2)
            raise error

    for step, error in enumerate((UserError("the disk is full"), StoppedBeforeUpdateError(), KeyboardInterrupt()), 7):
        with pytest.raises(type(error)):
            ended(step, error)
    [line] = (tmp_path / "train.log").read_text().splitlines()
    assert line.split(maxsplit=2)[2] == "stopped at step 7, epoch 2: the disk is full"
    assert "full" not in capsys.readouterr().err
