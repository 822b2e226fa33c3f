"""The options of a server and their validation."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

from convs2s_jax.core.config import check

LARGEST_PORT = 65535
Allowed = Literal["prefixes", "constraints", "sampling"]
"""Optional features that requests may use."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What to serve, where, and with which limits. Each field is a flag (docs/serving.md).

    Attributes:
      workdir: folder of a training run, or its address in an object store; several (A,B) translate as an ensemble.
      checkpoint: steps of checkpoints, or last:N for the last N; the kernels of several checkpoints are averaged.
        Default: the best checkpoint on validation.
      dtype: dtype of matrix products and activations; by default that of the run.
      int8: use 8-bit integers in convolutions and the softmax. This is 1.6 to 2 times as fast on CPUs with VNNI and
        jax 0.11 or later, no faster on an H200, and not tested on TPUs.
      shortlist: file of likely target words for each source word (`convs2s shortlist`). Translations only use the words
        that it lists for their source and the most frequent words, unless a request overrides this; by default all
        words.
      allow: optional features that requests may use: prefixes, constraints, sampling, or several of them. Each requires
        more programs to be compiled.
      host: address to listen on. The default only accepts connections from this machine.
      allow_host: further host names by which clients address this server, such as that of a proxy; * for any.
      port: port to listen on; 0 for any free port.
      beam_sizes: beam sizes that a request may use; the first is the default. By default that of the search.
      batch_size: maximum number of lines that are translated together.
      wait_ms: maximum time in milliseconds that a line waits for others to share its batch while another batch is in
        progress.
      max_tokens: maximum number of source tokens per line, including the end symbol; at most the model's positions.
      max_lines: maximum number of lines per request.
      max_body: maximum number of bytes per request.
      max_waiting: maximum number of waiting lines; further requests are answered with 429.
      timeout: seconds within which a request must arrive (else 408), and within which it is answered (else 504).
      drain: seconds that requests in progress have to finish after SIGTERM or Ctrl-C.
      search: fields of `SearchConfig` that override those of the run.
    """

    workdir: tuple[str, ...] = ()
    checkpoint: tuple[str, ...] = ()
    dtype: Literal["float32", "bfloat16"] | None = None
    int8: bool = False
    shortlist: str = ""
    allow: tuple[Allowed, ...] = ()
    host: str = "127.0.0.1"
    allow_host: tuple[str, ...] = ()
    port: int = 8080
    beam_sizes: tuple[int, ...] = ()
    batch_size: int = 64
    wait_ms: float = 500.0
    max_tokens: int = 256
    max_lines: int = 256
    max_body: int = 1 << 20
    max_waiting: int = 1024
    timeout: float = 30.0
    drain: int = 30
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise UserError for invalid options."""
        check(bool(self.workdir) and all(self.workdir), "--workdir is missing; set it as in --workdir=runs/demo")
        check(self.host != "", "--host is empty; use 127.0.0.1 for this machine only, or 0.0.0.0 for all its addresses")
        for name in self.allow_host:
            check(
                re.fullmatch(r"\*|[\w.-]*\w", name) is not None,
                f"--allow_host={name} is not a host name; leave out scheme and port, as in translate.example.com",
            )
        check(
            0 <= self.port <= LARGEST_PORT,
            f"--port={self.port} is invalid; use 1 to {LARGEST_PORT}, or 0 for any free port",
        )
        for name in ("batch_size", "max_lines", "max_body", "max_waiting"):
            check(getattr(self, name) >= 1, f"--{name} is {getattr(self, name)}; use 1 or more")
        check(
            self.max_tokens >= 2,
            f"--max_tokens is {self.max_tokens}; use 2 or more, since a word and the end symbol are 2 tokens",
        )
        check(0 <= self.wait_ms <= 1000, f"--wait_ms is {self.wait_ms}; use a value between 0 and 1000")
        check(0.1 <= self.timeout <= 3600, f"--timeout is {self.timeout}; use 0.1 to 3600 seconds")
        check(1 <= self.drain <= 3600, f"--drain is {self.drain}; use 1 to 3600 seconds")
        sizes = ",".join(map(str, self.beam_sizes))
        check(all(size >= 1 for size in self.beam_sizes), f"--beam_sizes={sizes}; each must be 1 or more")
        own = self.search.get("beam_size")
        check(
            own is None or not self.beam_sizes or own == self.beam_sizes[0],
            f"--beam_size={own} conflicts with --beam_sizes={sizes}, the first of which is the default for requests; "
            "remove --beam_size",
        )
        check(
            self.max_lines <= self.max_waiting,
            f"--max_lines={self.max_lines} exceeds --max_waiting={self.max_waiting}, so a full request could never "
            "be accepted; raise --max_waiting",
        )
