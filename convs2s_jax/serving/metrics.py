"""Metrics of a server, in Prometheus format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the latency buckets."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the batch size buckets."""


class Metrics:
    """The metrics of one server.

    Attributes:
      requests: answered translation requests, by status.
      lines: translated lines.
      seconds: time from the start of a request's arrival to its answer, without refusals.
      batch_lines: lines per batch.
    """

    def __init__(self, *, ready: Callable[[], bool], waiting: Callable[[], int]) -> None:
        """Start at zero. `ready` and `waiting` are called whenever the metrics are read."""
        self._registry = own = CollectorRegistry()
        self.requests = Counter("convs2s_requests", "translation requests, by status", ["status"], registry=own)
        self.lines = Counter("convs2s_lines", "translated lines", registry=own)
        self.seconds = Histogram(
            "convs2s_request_seconds",
            "time from the arrival of a request to its answer, without refusals",
            buckets=SECONDS,
            registry=own,
        )
        self.batch_lines = Histogram("convs2s_batch_lines", "lines per batch", buckets=ROWS, registry=own)
        Gauge("convs2s_ready", "1 once all programs are compiled", registry=own).set_function(lambda: float(ready()))
        Gauge("convs2s_waiting_lines", "lines waiting for a batch", registry=own).set_function(lambda: float(waiting()))

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
