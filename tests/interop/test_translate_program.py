"""translate.py of an export as a command: what it reads and writes, what it refuses, and signals."""

import contextlib
import gzip
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.interop.programs import runtime
from tests.stores import bucket, requests  # noqa: F401  (fixtures)


@pytest.mark.parametrize("name", ["text", "text.gz", "-"])
def test_the_runtime_reads_texts_as_decoding_does(name, tmp_path, monkeypatch):
    text = "\ufeffa\u2028b\r\n\n\x85c\nd"
    for content in (text, f"{text}\n", "", "\n"):
        data = content.encode()
        data = data if name == "text" else gzip.compress(data)
        (tmp_path / "text.gz").write_bytes(data)
        (tmp_path / "text").write_bytes(data)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        found = runtime._lines(name if name == "-" else str(tmp_path / name))
        assert found == read_lines(tmp_path / "text")


@pytest.mark.parametrize(
    ("redirection", "sentence"),
    [
        ("<&-", "standard input is closed: redirect a file to it, or use --input=FILE"),
        (">&-", "standard output is closed: redirect it to a file, or use --output=FILE"),
    ],
)
def test_a_closed_stream_is_one_sentence_before_anything_is_translated(redirection, sentence):
    command = f"'{sys.executable}' '{runtime.__file__}' {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False, input="a")
    assert (done.returncode, done.stderr) == (2, f"translate.py: {sentence}\n")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("text", b"a\nb\xff\n"),
        ("-", b"\xfe"),
        ("text.gz", gzip.compress(b"\n\xff", mtime=0)),
        ("text", gzip.compress(b"abc", mtime=0)[:-1] + b"\xff"),
    ],
)
def test_the_runtime_refuses_what_is_no_text_in_the_words_of_decoding(name, data, tmp_path, monkeypatch, capsys):
    path = name if name == "-" else str(tmp_path / name)
    (tmp_path / name).write_bytes(data)

    def stdin():
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    stdin()
    with pytest.raises(UserError) as expected:
        read_lines(path)
    stdin()
    monkeypatch.setattr("sys.argv", ["translate.py", f"--input={path}"])
    monkeypatch.setattr(runtime, "Model", lambda: pytest.fail("the text was read too late"))
    with pytest.raises(SystemExit) as ended:
        runtime.main()
    assert (ended.value.code, capsys.readouterr().err) == (2, f"translate.py: {expected.value}\n")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that runs the program of an export whose model turns lines around; it returns status and message."""
    folder = tmp_path / "export"
    folder.mkdir()
    content = {"format": runtime.FORMAT, "files": {"src.model": "0"}}
    (folder / "manifest.json").write_text(json.dumps(content | {"checksum": runtime.checksum(content)}))
    for name in ("src.model", "requirements.txt", "translate.py"):
        (folder / name).write_bytes(Path(runtime.__file__).read_bytes())
    spec = importlib.util.spec_from_file_location("translate", folder / "translate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = SimpleNamespace(_translate=lambda lines, _nbest: [line[::-1] for line in lines])
    monkeypatch.setattr(module, "Model", lambda: model)
    monkeypatch.chdir(folder)

    def run(*flags, stdin=os.devnull):
        before, error = os.dup(0), io.StringIO()
        with open(stdin, "rb") as file, contextlib.redirect_stderr(error):
            os.dup2(file.fileno(), 0)
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.FileIO(0, closefd=False)))
            monkeypatch.setattr("sys.argv", ["translate.py", *flags])
            try:
                module.main()
            except SystemExit as ended:
                return ended.code, error.getvalue()
            finally:
                os.dup2(before, 0)
                os.close(before)
        return 0, error.getvalue()

    run.module = module
    return run


@pytest.mark.parametrize("name", ["manifest.json", "src.model", "requirements.txt", "translate.py", "link", "text"])
def test_an_output_that_is_the_input_or_belongs_to_the_export_is_refused(name, program):
    Path("link").symlink_to("translate.py")
    Path("text").write_text("abc\n")
    before, whose = Path(name).read_bytes(), "the --input file" if name == "text" else "part of this export"
    message = f"translate.py: --output={name} is {whose} and would be overwritten; choose another file\n"
    assert program("--input=text", f"--output={name}") == (2, message)
    assert program(f"--output={name}", stdin="text") == (2, message)
    assert Path(name).read_bytes() == before


def test_an_output_without_a_name_is_refused(program):
    Path("text").write_text("abc\n")
    message = "translate.py: --output is empty; specify a file, or - for standard output\n"
    assert program("--input=text", "--output=") == (2, message)


def test_an_output_is_replaced_as_a_whole(program, monkeypatch):
    Path("text").write_text("abc\n")
    Path("other").write_text("kept")
    Path("other").chmod(0o640)
    os.link("other", "before")
    Path("link").symlink_to("other")
    assert program("--input=text", "--output=link") == (0, "")
    assert (Path("link").is_symlink(), Path("other").read_text(), Path("before").read_text()) == (True, "cba\n", "kept")
    assert Path("other").stat().st_mode & 0o777 == 0o640
    monkeypatch.setattr(os, "replace", lambda *_: os.stat("nowhere"))
    status, message = program("--input=text", "--output=new")
    assert (status, message.endswith("cannot be written: No such file or directory; choose another file\n")) == (
        2,
        True,
    )
    assert not [*Path().glob(".*"), *Path().glob("new")]


def test_pipes_and_standard_output_under_another_name_are_written_as_they_are(program, capfd):
    Path("text").write_text("abc\n")
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert program("--input=text", "--output=pipe") == (0, "")
    assert os.read(reader, 9) == b"cba\n"
    os.close(reader)
    for output in ("-", "/dev/stdout", f"/proc/{os.getpid()}/fd/1"):
        assert program("--input=text", f"--output={output}") == (0, "")
    assert capfd.readouterr().out == "cba\n" * 3


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--input=nowhere"],
            "--input=nowhere cannot be read: No such file or directory; choose a text file",
        ),
        (["--input=."], "--input=. cannot be read: Is a directory; choose a text file"),
        (["--output=a/b"], "--output=a/b cannot be written: No such file or directory; choose another file"),
        (["--output=."], "--output=. cannot be written: Is a directory; choose another file"),
    ],
)
def test_a_file_that_cannot_be_opened_is_named_before_the_work(flags, sentence, program, monkeypatch):
    monkeypatch.setattr(program.module, "Model", lambda: pytest.fail("too late"))
    assert program(*flags) == (2, f"translate.py: {sentence}\n")


def handles(process, number):
    """Whether a process has a handler for a signal."""
    [caught] = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) & 1 << number - 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc tells which signals a process handles")
@pytest.mark.parametrize("moment", [0.1, 2.0])
def test_an_interrupt_ends_the_program_without_a_traceback(moment):
    """During its imports, and while it waits for its input."""
    code = "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "  # if it was ignored
    code += "print(flush=True); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, runtime.__file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    end = time.monotonic() + 20
    while handles(process, signal.SIGINT) and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (-signal.SIGINT, b"")
