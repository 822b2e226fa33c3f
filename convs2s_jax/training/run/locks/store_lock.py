"""One trainer in a workdir of an object store: claims with a heartbeat (decision 0025).

A claim is the object lock-ID with a random ID. A process that wants the workdir writes its own claim, and then lists
all. If no other claim is alive, it holds the workdir; otherwise it withdraws. A store shows what was written in every
later listing, so of two claims at least the later one sees the other. The store need not guarantee anything more, and
no clocks are compared.
"""

import contextlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from convs2s_jax.core import stores
from convs2s_jax.training.run.processes.holder import Holder, end_lost, in_use, looks, this_process
from convs2s_jax.training.run.processes.interrupts import EndedAtOnceError

BEAT = 10.0
"""Seconds between two beats of a holder."""
SILENCE = 60.0
"""Seconds without a beat after which a claim is over, unless its process is known to live or to have ended."""
PREFIX = "lock-"


@contextlib.contextmanager
def held(workdir: str) -> Iterator[Callable[[], bool]]:
    """Hold a workdir. If another process takes it from this one, which it can after `SILENCE`, this process ends.

    After a second signal the claim stays: it is over since its process has ended.

    Yields:
      A function that returns whether the last beat is so recent that nobody can have taken the workdir.

    Raises:
      UserError: another process holds it.
      OSError: the claim cannot be written or read.
    """
    claim = _Claim(workdir)
    stop = threading.Event()
    beats = threading.Thread(target=claim.beat, args=(stop,), daemon=True)
    beats.start()
    at_once = False
    try:
        yield claim.is_fresh
    except EndedAtOnceError:
        at_once = True  # as by a kill: what is being written may reach the store a moment later
        raise
    finally:
        stop.set()
        if not at_once:
            beats.join()
            with contextlib.suppress(OSError):  # otherwise it is over when it has been silent
                claim.withdraw()


class _Claim:
    """A claim that holds its workdir."""

    def __init__(self, workdir: str) -> None:
        """Claim a workdir. Errors are those of `held`."""
        self._workdir, self._name, self._count = workdir, f"{PREFIX}{uuid.uuid4().hex}", 0
        self._over = _over(workdir)
        self._written = time.monotonic()
        self._write()
        claims = _claims(workdir)
        if self._name not in claims:
            self.withdraw()
            raise stores.not_listed(workdir)
        others = {name: text for name, text in claims.items() if name != self._name}
        for name, text in others.items():
            if self._over.get(name) != text:
                self.withdraw()
                raise in_use(workdir, _holder(text))
        stores.delete_all(workdir, others)

    def is_fresh(self) -> bool:
        """Whether nobody can have taken the workdir: a margin is left for writes that have begun."""
        return time.monotonic() - self._written < SILENCE / 2

    def withdraw(self) -> None:
        """Delete the claim."""
        stores.delete(self._address)

    def beat(self, stop: threading.Event) -> None:
        """Write heartbeats to the claim until `stop`; end this process if another one has taken the workdir."""
        while not stop.wait(BEAT):
            with contextlib.suppress(OSError):  # a failing network does not end a run; others see the silence
                began = time.monotonic()
                claims = _claims(self._workdir)
                takers = [text for text in claims.values() if self._name in _record(text).get("over", ())]
                # who took it may have gone since, and another one come
                if takers or (self._name not in claims and not stores.is_readable(self._address)):
                    end_lost(self._workdir, _holder(next(iter(takers or claims.values()), b"")), SILENCE)
                self._count += 1
                self._write()
                self._written = began

    @property
    def _address(self) -> str:
        return stores.join(self._workdir, self._name)

    def _write(self) -> None:
        """Write the claim: its holder, the claims that it found to be over, and the count of its beats."""
        record = {"holder": json.loads(this_process().to_bytes()), "over": sorted(self._over), "beats": self._count}
        stores.write(self._address, json.dumps(record).encode())


def holders(workdir: str) -> list[Holder | None]:
    """Return the holders of all claims on a workdir, None for a damaged one. Raises OSError if they cannot be read."""
    return [_holder(text) for text in _claims(workdir).values()]


def _over(workdir: str) -> Mapping[str, bytes]:
    """The claims of a workdir that are over. Raises UserError if one is not."""
    found = _claims(workdir)
    silent = {}
    for name, text in found.items():
        holder = _holder(text)
        alive = None if holder is None else holder.is_alive
        if alive:
            raise in_use(workdir, holder)
        if alive is None:
            silent[name] = text
    if silent:
        _watch(workdir, silent)
    return found


def _watch(workdir: str, silent: Mapping[str, bytes]) -> None:
    """Wait until claims have been silent for `SILENCE` seconds. Raises UserError at a sign of life."""
    holders = ", ".join(str(_holder(text) or "another process") for text in silent.values())
    sys.stderr.write(f"--workdir={workdir}: {holders} claims it; waiting {SILENCE:.0f} s for a sign of life\n")
    for _ in looks(SILENCE, BEAT):
        now = _claims(workdir)
        for name, text in now.items():
            if silent.get(name, text) != text:
                raise in_use(workdir, _holder(text))
        if not now.keys() & silent.keys():
            return


def _claims(workdir: str) -> dict[str, bytes]:
    """The claims of a workdir and their contents."""
    found = {}
    for name in stores.names(workdir, PREFIX):
        with contextlib.suppress(FileNotFoundError):  # withdrawn just now
            found[name] = stores.read(stores.join(workdir, name))
    return found


def _record(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _holder(text: bytes) -> Holder | None:
    return Holder.from_bytes(json.dumps(_record(text).get("holder")).encode())
