"""Decode with files in object stores. Inputs are copied first, and the output is written back while it grows."""

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.stores import store_copy
from convs2s_jax.translation.jobs import resuming
from convs2s_jax.translation.jobs.job import Tell
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.jobs.output import held_interrupts

FILES = ("input", "prefix", "constraints", "score", "unk_dictionary", "shortlist")
"""Options for a single file to read; --reference accepts several."""
PERIOD = 15.0
"""Interval in seconds at which the whole output is written back."""


@contextlib.contextmanager
def localised(options: Options, tell: Tell) -> Iterator[tuple[Options, Tell]]:
    """Replace addresses in object stores by local copies. Yield the new options and a `tell` that shows the addresses.

    Raises:
      UserError: a store cannot be used, a file is missing, or the output cannot be written back at the end.
    """
    for flag, workdir in options.runs:
        run_folder.check_not_of_run(options.output, workdir, flag)
    with contextlib.ExitStack() as stack:
        copies = _Copies(stack, tell)
        files: dict[str, Any] = {name: copies.file(name, getattr(options, name)) for name in FILES}
        found = replace(
            options,
            **files,
            reference=tuple(copies.file("reference", path) for path in options.reference),
            workdir=tuple(copies.workdir("workdir", path) for path in options.workdir),
            lm=copies.workdir("lm", options.lm),
            output=copies.output(options.output, resume=options.resume),
        )
        yield found, lambda sentence: tell(copies.with_addresses(sentence))


class _Copies:
    """Local copies, which exist while the stack is open."""

    def __init__(self, stack: contextlib.ExitStack, tell: Tell) -> None:
        self._stack, self._tell, self._names = stack, tell, dict[str, str]()

    def file(self, flag: str, address: str) -> str:
        """Return the path of a file to read."""
        if not scheme_of(address):
            return address
        path = self._stack.enter_context(store_copy.read_file(address, flag=f"--{flag}"))
        self._names[str(path)] = address
        return str(path)

    def workdir(self, flag: str, address: str) -> str:
        """Return the folder of a workdir."""
        if not scheme_of(address):
            return address
        folder = self._stack.enter_context(store_copy.opened(address, flag=f"--{flag}"))
        self._names[str(folder)] = address.rstrip("/")
        return str(folder)

    def output(self, address: str, *, resume: bool) -> str:
        """Return the path of the output file."""
        if not scheme_of(address):
            return address
        path = self._stack.enter_context(_written_back(address, self._tell, resume=resume))
        self._names[str(path)] = address
        self._stack.enter_context(store_copy.address_in_errors(path, address))
        return str(path)

    def with_addresses(self, sentence: str) -> str:
        """Return a message with the paths of copies replaced by the addresses."""
        for path, address in self._names.items():
            sentence = sentence.replace(path, address)
        return sentence


@contextlib.contextmanager
def _written_back(address: str, tell: Tell, *, resume: bool) -> Iterator[Path]:
    """Yield a local file that is written back to a store, periodically and at the end, even after an error."""
    stores.check_object("--output", address)
    folder = Path(tempfile.mkdtemp(prefix="convs2s_jax-"))
    path = folder / (address.rpartition("/")[2] or "output")
    try:
        for name in (address, f"{address}{resuming.SUFFIX}") if resume else ():
            with contextlib.suppress(FileNotFoundError):
                (folder / name.rpartition("/")[2]).write_bytes(stores.read(name))
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
        with held_interrupts():  # a second one ends the upload
            stop.set()
            thread.join()
            try:
                output.push()
            except OSError as error:
                raise UserError(
                    f"--output={address} cannot be written: {error.strerror}; the results so far are in {folder}"
                ) from error
            except KeyboardInterrupt:
                tell(f"--output={address} is not complete; the results so far are in {folder}")
                raise
            shutil.rmtree(folder, ignore_errors=True)


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
