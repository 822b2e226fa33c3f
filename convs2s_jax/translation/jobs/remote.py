"""Decode with files in object stores. Inputs are copied first, and the output is written back while it grows."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from convs2s_jax.core import local_copies, stores
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.guard import held_interrupts
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run import store_copy
from convs2s_jax.translation.jobs import output
from convs2s_jax.translation.jobs.options import READ, Options

PERIOD = 15.0
"""Seconds after which the whole output is written back, once a window is done."""


@contextlib.contextmanager
def localised(options: Options, tell: Tell) -> Iterator[tuple[Options, Tell, Callable[[], None]]]:
    """Replace addresses in object stores by local copies, which exist within the block.

    Yields:
      The new options, a `tell` that shows the addresses, and a function to call after each window.

    Raises:
      UserError: a store cannot be used, a file is missing, or the output cannot be written back at the end.
    """
    with contextlib.ExitStack() as stack:

        def copied(flag: str, place: str) -> str:
            nonlocal tell
            if not scheme_of(place):
                return place
            if flag in ("workdir", "lm"):
                folder, tell = stack.enter_context(store_copy.reading(place, tell, flag=f"--{flag}"))
                return str(folder)
            path = stack.enter_context(local_copies.incoming(f"--{flag}", place))
            tell = local_copies.with_address(tell, path, place)
            return str(path)

        changed: dict[str, Any] = {name: copied(name, getattr(options, name)) for name in (*READ, "lm")}
        for name in ("reference", "workdir"):
            changed[name] = tuple(copied(name, place) for place in getattr(options, name))
        save: Callable[[], None] = lambda: None  # noqa: E731
        if scheme_of(options.output):
            changed["output"], save = stack.enter_context(_written_back(options, tell))
            tell = local_copies.with_address(tell, changed["output"], options.output)
        yield replace(options, **changed), tell, save


@contextlib.contextmanager
def _written_back(options: Options, tell: Tell) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield a local file that is written back to a store at the end, even after an error, and a function to do it."""
    address = options.output
    stores.check_object("--output", address)
    folder, path = local_copies.temporary(address)
    record = path.with_name(path.name + output.SUFFIX)
    saved, sent = time.monotonic(), b""

    def send() -> None:
        """Write both if they have changed, the output first, so that the record only covers what is in it."""
        nonlocal saved, sent
        saved = time.monotonic()
        if path.exists() and (now := record.read_bytes()) != sent:
            stores.write(address, path.read_bytes())
            stores.write(f"{address}{output.SUFFIX}", now)
            sent = now

    def save() -> None:
        if time.monotonic() - saved >= PERIOD:
            with contextlib.suppress(OSError):  # tried again later
                send()

    try:
        for end in ("", output.SUFFIX) if options.resume else ():
            with contextlib.suppress(FileNotFoundError):
                local_copies.download(address + end, path.with_name(path.name + end))
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise stores.unusable("--output", address, error) from error
        raise
    sent = record.read_bytes() if record.exists() else b""
    try:
        with local_copies.address_in_errors(path, address):
            yield str(path), save
    finally:
        _upload(address, folder, send, tell)


def _upload(address: str, folder: Path, send: Callable[[], None], tell: Tell) -> None:
    """Upload the rest of the output, and then delete the temporary folder that contains it.

    An interrupt (SIGINT, SIGTERM) takes effect after the upload; a second one ends it after the object that is being
    written. If the upload fails or is ended, the folder stays, and the message states where it is.

    Raises:
      UserError: the output cannot be written.
    """
    rest = f"a part may be in the store; all results are in {folder}"
    with held_interrupts():
        try:
            send()
        except OSError as error:
            raise UserError(f"--output={address} cannot be written: {error.strerror}; {rest}") from error
        except KeyboardInterrupt:
            tell(f"--output={address} is not complete; {rest}")
            raise
        shutil.rmtree(folder, ignore_errors=True)
