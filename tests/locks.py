"""Processes that hold the lock of a workdir, for tests of it."""

import contextlib
import subprocess
import sys
import textwrap

from convs2s_jax.training.run.locks.lock import locked
from tests import tiny

PROGRAM = """
    import errno, fcntl, os, sys, time
    from pathlib import Path
    from convs2s_jax.core.errors import UserError
    from convs2s_jax.training.run.locks import lease
    from convs2s_jax.training.run.locks.lock import locked

    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    workdir, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "claims":
        fcntl.flock = unsupported
        lease.BEAT, lease.SILENCE = 0.05, 0.5

    def hold():
        print("trying", flush=True)
        sys.stdin.readline()
        try:
            with locked(workdir):
                print("held", flush=True)
                if "fork" in sys.argv and os.fork() == 0:
                    print(os.getpid(), flush=True)
                    time.sleep(60)
                sys.stdin.readline()
        except UserError as error:
            print(error, flush=True)

    def count():
        inside = workdir / "inside"
        for _ in range(int(sys.argv[3])):
            try:
                with locked(workdir):
                    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails beside another holder
                    time.sleep(0.001)
                    inside.unlink()
                    print("held", flush=True)
            except UserError:
                time.sleep(0.002)

    count() if sys.argv[3].isdigit() else hold()
"""
FLOCK, CLAIMS = "flock", "claims"


class StoppedClock:
    """In place of `time`: each sleep, however short, lasts `seconds`, and calls the action of its number."""

    def __init__(self, seconds, actions):
        self.seconds, self.actions, self.slept = seconds, actions, 0

    def monotonic(self):
        return self.seconds * self.slept

    def sleep(self, _seconds):
        self.slept += 1
        self.actions.get(self.slept, lambda: None)()


@contextlib.contextmanager
def holders(workdir, mode, what="hold", number=1):
    """Processes that wait for a line, try to hold the lock, say so, and hold it until the next line."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(workdir), mode, what]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(number):
            process = subprocess.Popen(command, cwd=tiny.ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            stack.callback(end, process)
            started.append(process)
        yield started


def end(process):
    process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    process.wait()


def go(process):
    """Let a process try; what it says of it."""
    assert process.stdout.readline() == "trying\n"
    return proceed(process)


def proceed(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def hold(workdir):
    with locked(workdir):
        pass
