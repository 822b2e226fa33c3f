"""The options of a server and their consistency checks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from convs2s_jax.core.config import check

LARGEST_PORT = 65535


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What to serve, where, and within which limits: each field is a flag (docs/serving.md).

    Attributes:
      workdir: folder of a training run; several (A,B) translate together as an ensemble.
      checkpoint: steps of checkpoints, or last:N for the last N, whose kernels are averaged; by default the one that is
        best on validation.
      dtype: dtype of matrix products and activations; by default the run's.
      int8: convolutions and the softmax compute with 8-bit integers: twice as fast on CPUs with VNNI from jax 0.11 on,
        no faster on an H200, not tried on TPUs.
      shortlist: file of likely target words for each source word (`convs2s shortlist`): translations use the words of
        their source in it only, unless a request says otherwise; by default all words.
      allow: prefixes, constraints, sampling, or several of them: what requests may ask for besides. Each means further
        programs.
      host: address to listen on. The default accepts connections of this machine only.
      port: port to listen on; 0 for any that is free.
      beam_sizes: beam sizes that a request may ask for, the first by default; by default that of the search.
      batch_size: most lines that are translated together.
      wait_ms: most milliseconds that a line waits for others to share its batch, while another batch is in progress.
      max_tokens: most source tokens of a line, its end symbol counted; at most the model's positions.
      max_lines: most lines of a request.
      max_body: most bytes of a request.
      max_waiting: most lines that wait; further requests are answered with 429.
      timeout: seconds within which a request is read, and within which it is answered; later, the answer is 504.
      drain: seconds that requests in progress have to end after SIGTERM or Ctrl-C.
      search: fields of `SearchConfig` that override the run's.
    """

    workdir: tuple[str, ...] = ()
    checkpoint: tuple[str, ...] = ()
    dtype: Literal["float32", "bfloat16"] | None = None
    int8: bool = False
    shortlist: str = ""
    allow: tuple[Literal["prefixes", "constraints", "sampling"], ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    beam_sizes: tuple[int, ...] = ()
    batch_size: int = 64
    wait_ms: float = 500.0
    max_tokens: int = 256
    max_lines: int = 256
    max_body: int = 1 << 20
    max_waiting: int = 1024
    timeout: float = 30.0
    drain: float = 30.0
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse options that no server can have."""
        check(bool(self.workdir) and all(self.workdir), "--workdir is missing, as in --workdir=runs/demo")
        check(self.host != "", "--host is empty: use 127.0.0.1 for this machine, 0.0.0.0 for all its addresses")
        check(0 <= self.port <= LARGEST_PORT, f"--port={self.port}: use a port from 1 to {LARGEST_PORT}, or 0 for any")
        for name in ("batch_size", "max_lines", "max_body", "max_waiting"):
            check(getattr(self, name) >= 1, f"--{name} is {getattr(self, name)}: use 1 or more")
        check(
            self.max_tokens >= 2, f"--max_tokens is {self.max_tokens}: a word and its end symbol are 2; use 2 or more"
        )
        check(0 <= self.wait_ms <= 1000, f"--wait_ms is {self.wait_ms}: use a value from 0 to 1000")
        for name in ("timeout", "drain"):
            check(0 < getattr(self, name) <= 3600, f"--{name} is {getattr(self, name)}: use 0.1 to 3600 seconds")
        check(all(size >= 1 for size in self.beam_sizes), f"--beam_sizes={self.beam_sizes}: each is 1 or more")
        own = self.search.get("beam_size")
        check(
            own is None or not self.beam_sizes or own == self.beam_sizes[0],
            f"--beam_size={own} with --beam_sizes={','.join(map(str, self.beam_sizes))}: the first of these is that of "
            "a request that names none; leave --beam_size out",
        )
        check(
            self.max_lines <= self.max_waiting,
            f"--max_lines={self.max_lines} with --max_waiting={self.max_waiting}: a request could never be taken; "
            "raise --max_waiting",
        )
        check(
            not self.search.get("sampling"),
            "--sampling: a server answers the same request with the same translations; leave it out",
        )
