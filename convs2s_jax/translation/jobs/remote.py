"""Decode with files in object stores. Inputs are copied first, and the output is written back while it grows."""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from convs2s_jax.core import local_copies, stores
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run import outputs, store_copy
from convs2s_jax.translation.jobs import resuming
from convs2s_jax.translation.jobs.options import READ, Options

PERIOD = 15.0
"""Interval in seconds at which the whole output is written back."""


@contextlib.contextmanager
def localised(options: Options, tell: Tell) -> Iterator[tuple[Options, Tell]]:
    """Replace addresses in object stores by local copies. Yield the new options and a `tell` that shows the addresses.

    Raises:
      UserError: a store cannot be used, a file is missing, or the output cannot be written back at the end.
    """
    for flag, workdir in options.runs:
        outputs.check_not_of_run(options.output, workdir, flag)
    with contextlib.ExitStack() as stack:
        copies = _Copies(stack, tell)
        files: dict[str, Any] = {name: copies.file(name, getattr(options, name)) for name in READ}
        found = replace(
            options,
            **files,
            reference=tuple(copies.file("reference", path) for path in options.reference),
            workdir=tuple(copies.workdir("workdir", path) for path in options.workdir),
            lm=copies.workdir("lm", options.lm),
            output=copies.output(options.output, resume=options.resume),
        )
        yield found, copies.tell


class _Copies:
    """Local copies, which exist while the stack is open, and a `tell` that shows their addresses."""

    def __init__(self, stack: contextlib.ExitStack, tell: Tell) -> None:
        self._stack, self.tell = stack, tell

    def file(self, flag: str, address: str) -> str:
        """Return the path of a file to read."""
        if not scheme_of(address):
            return address
        path = self._stack.enter_context(local_copies.incoming(f"--{flag}", address))
        self.tell = local_copies.with_address(self.tell, path, address)
        return str(path)

    def workdir(self, flag: str, address: str) -> str:
        """Return the folder of a workdir."""
        if not scheme_of(address):
            return address
        folder, self.tell = self._stack.enter_context(store_copy.reading(address, self.tell, flag=f"--{flag}"))
        return str(folder)

    def output(self, address: str, *, resume: bool) -> str:
        """Return the path of the output file."""
        if not scheme_of(address):
            return address
        path = self._stack.enter_context(_written_back(address, self.tell, resume=resume))
        self._stack.enter_context(local_copies.address_in_errors(path, address))
        self.tell = local_copies.with_address(self.tell, path, address)
        return str(path)


@contextlib.contextmanager
def _written_back(address: str, tell: Tell, *, resume: bool) -> Iterator[Path]:
    """Yield a local file that is written back to a store, periodically and at the end, even after an error."""
    stores.check_object("--output", address)
    folder, path = local_copies.temporary(address)
    try:
        for end in ("", resuming.SUFFIX) if resume else ():
            with contextlib.suppress(FileNotFoundError):
                local_copies.download(address + end, path.with_name(path.name + end))
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise stores.unusable("--output", address, error) from error
        raise
    output = _Output(address, path)
    stop = threading.Event()
    thread = threading.Thread(target=output.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield path
    finally:

        def send() -> None:
            stop.set()
            thread.join()
            output.push()

        local_copies.upload("--output", address, folder, send, tell)


class _Output:
    """Writes an output and its resume record back to a store."""

    def __init__(self, address: str, path: Path) -> None:
        self._address, self._path = address, path
        self._record = path.with_name(path.name + resuming.SUFFIX)
        self._written = self._state()

    def push(self) -> None:
        """Write both back if they have changed, the output first, so that the record only covers what is in it.

        Raises:
          OSError: they cannot be written.
        """
        state = self._state()
        if state == self._written or not self._path.exists():
            return
        record = self._record.read_bytes()
        stores.write(self._address, self._path.read_bytes())
        stores.write(f"{self._address}{resuming.SUFFIX}", record)
        self._written = state

    def run(self, stop: threading.Event) -> None:
        """Write back periodically until stopped. A failed write is retried."""
        while not stop.wait(PERIOD):
            with contextlib.suppress(OSError):
                self.push()

    def _state(self) -> list[tuple[int, int]]:
        """Return the sizes and modification times of both files."""
        found = []
        for path in (self._path, self._record):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(path)
                found.append((status.st_size, status.st_mtime_ns))
        return found
