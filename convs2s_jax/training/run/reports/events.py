"""TensorBoard events: the numbers of a run over its steps."""

import importlib
import logging
import os
import sys
import time
from pathlib import Path
from types import ModuleType


def _without_torch(name: str) -> ModuleType:
    """Import a module with torch hidden: it would import torch if installed, which takes seconds and is not needed."""
    if "torch" in sys.modules:
        return importlib.import_module(name)
    sys.modules["torch"] = None  # type: ignore[assignment]  # now its import fails, as if it were not installed
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules["torch"]


tensorboard = _without_torch("tensorboardX.event_file_writer")
scalar = _without_torch("tensorboardX.summary").scalar
proto = _without_torch("tensorboardX.proto.event_pb2")
logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # otherwise each NaN prints a line next to the progress
_SECONDS = 60
"""Maximum time that events wait in memory."""


class Events:
    """Appends events to its own file in a folder.

    tensorboardX's SummaryWriter writes in a thread. On a full disk that thread ended with a traceback, and the run
    waited for it forever; here the error reaches the caller.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        """Begin after `step` updates: later events of earlier files are hidden. Raises OSError if it cannot."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tensorboard.EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}")
        self._flushed = time.monotonic()
        start = proto.SessionLog(status=proto.SessionLog.START)
        self._file.write_event(proto.Event(step=step + 1, wall_time=time.time(), session_log=start))

    def write(self, name: str, value: float | int, *, step: int) -> None:
        """Add a number. Raises OSError if the disk is full."""
        self._file.write_event(proto.Event(step=step, wall_time=time.time(), summary=scalar(name, value)))
        if time.monotonic() > self._flushed + _SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Write what waits in memory. Raises OSError if the disk is full."""
        self._file.close()
