"""Where the time of a run goes: every second of this process belongs to one activity."""

import contextlib
import time
from collections.abc import Iterator
from typing import Literal, get_args

Activity = Literal["compute", "input", "validation", "checkpoint", "compile", "other"]
"""What the host does, or waits for.

compute: updates. The host waits for the device, or prepares its next update; either way the device is working.
input: updates wait for batches, and the order of an epoch is planned.
validation: losses and scores, also of the test set, including compilation of programs that only they need.
checkpoint: the part of a save that blocks the host; the rest is written while updates continue.
compile: updates of new shapes, with their first results.
other: the start (reading data, restoring a checkpoint), reports and trackers, traces, and the end.
"""
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)


class WallClock:
    """Measures the time by activity."""

    def __init__(self) -> None:
        """Start now, with "other"."""
        self._now: Activity = "other"
        self._since = time.perf_counter()
        self._spent = dict.fromkeys(ACTIVITIES, 0.0)
        self._before = dict.fromkeys(ACTIVITIES, 0.0)

    @contextlib.contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Count the time inside towards this activity; nested activities count separately."""
        outer = self._switch(activity)
        try:
            yield
        finally:
            self._switch(outer)

    def reassign(self, activity: Activity, seconds: float) -> None:
        """Move the last seconds from the current activity to another one."""
        self._spent[activity] += seconds
        self._spent[self._now] -= seconds

    def take(self) -> dict[Activity, float]:
        """Seconds since the last call, or since the beginning."""
        self._switch(self._now)
        taken, self._spent = self._spent, dict.fromkeys(ACTIVITIES, 0.0)
        self._before = {name: self._before[name] + taken[name] for name in ACTIVITIES}
        return taken

    def account(self) -> str:
        """A sentence for the user: the time since the beginning, and the share of each activity."""
        self.take()
        total = sum(self._before.values())
        parts = ", ".join(f"{name} {100 * part / total:.1f} %" for name, part in self._before.items())
        return f"{total:.1f} s, of which {parts}"

    def _switch(self, activity: Activity) -> Activity:
        """Count the time up to now, and continue with `activity`; return the one before."""
        now = time.perf_counter()
        self._spent[self._now] += now - self._since
        before, self._now, self._since = self._now, activity, now
        return before
