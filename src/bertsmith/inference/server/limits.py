"""What a server takes in, how much may wait in it, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bertsmith.base.errors import BertsmithError, TypeChecked

CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 1024, 16_384


@dataclass(frozen=True)
class Limits(TypeChecked):
    """Every number is 1 or more, but for `batch_tokens`. Raises BertsmithError for one that is not."""

    connections: int = 900
    """The most connections. Where there are more, the one that has waited longest for its client is cut; where none
    waits, the new one is answered with 503."""
    body_bytes: int = 4_000_000
    """The most bytes of a request's body; a longer one is answered with 413."""
    rows: int = 1024
    """The most texts or rows of a request (413)."""
    queue_requests: int = 512
    """The most requests that wait for a model; another one is answered with 429."""
    queue_tokens: int = 262_144
    """The most tokens that wait for a model (429); a request with more by itself is refused (413)."""
    queue_seconds: float = 2.0
    """A request is refused with 429 if its estimated wait, at the measured speed, is longer than this."""
    request_seconds: float = 60.0
    """How long a request may wait for its answer (504)."""
    body_seconds: float = 20.0
    """How long a client may take for the head of a request, or for its body (408), or to read on in an answer."""
    stop_seconds: float = 30.0
    """How long requests that are in the server may take once a signal stops it."""
    batch_tokens: int = 0
    """The most tokens that go through a model at once, fewer where these take more than a second; 0 is 1,024 on a CPU
    and 16,384 on a GPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in fields(self):
            value, least = getattr(self, each.name), 0 if each.name == "batch_tokens" else 1
            if not value >= least:
                flag = f"--limits.{each.name.replace('_', '-')}"
                raise BertsmithError(f"{flag} is {value}", "the limits of the server", f"use a number from {least}")

    @property
    def open_files(self) -> int:
        """Those of the process at its most: some connections are taken before others are closed."""
        return self.connections + 124

    @property
    def encoded_bytes(self) -> int:
        """The most letters of a request, a text counted as often as it is encoded: beside each choice, for one."""
        return 4 * self.body_bytes

    @property
    def bodies_bytes(self) -> int:
        """The most bytes that have come of all bodies that are read or answered at a time."""
        return 64 * self.body_bytes

    @property
    def answer_bytes(self) -> int:
        """The most bytes of an answer, about, where it can be far longer than the request."""
        return 16 * self.body_bytes

    def batch_tokens_on(self, cpu: bool) -> int:
        """`batch_tokens` on a CPU, or on a GPU."""
        return self.batch_tokens or (CPU_BATCH_TOKENS if cpu else GPU_BATCH_TOKENS)
