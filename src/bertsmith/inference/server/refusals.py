"""A request that is not answered: its status, what is wrong, and how the client learns of it.

The JSON is that of Text Embeddings Inference, {"error", "error_type"}; under /v1 it is OpenAI's, {"error": {"message",
"type", "code", "param"}}.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic_core import to_json

from bertsmith.base.errors import BertsmithError

OPENAI_PATHS = "/v1/"
_ERROR_TYPES = {
    401: "Unauthorized",
    404: "NotFound",
    405: "NotFound",
    408: "Timeout",
    424: "Backend",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    504: "Timeout",
}
"""Of Text Embeddings Inference; every other status is a "Validation"."""


@dataclass
class Refusal(Exception):
    """status: of HTTP. message: what is wrong, where, and what to do. headers: beside those of every answer."""

    status: int
    message: str
    headers: dict[str, str] = field(default_factory=dict)

    def body(self, path: str) -> bytes:
        """The JSON for a request of this path."""
        kind = _ERROR_TYPES.get(self.status, "Validation")
        # A name that a client sent may hold half of a surrogate pair, which no answer can.
        message = self.message.encode(errors="backslashreplace").decode()
        if path.startswith(OPENAI_PATHS):
            return to_json({"error": {"message": message, "type": kind, "code": self.status, "param": None}})
        return to_json({"error": message, "error_type": kind})


def refused(error: BertsmithError) -> Refusal:
    """422: an error of the user's, without a remedy that names flags, which who asks a server does not have."""
    where = f" ({error.where})" if error.where else ""
    return Refusal(422, f"{error.what}{where}" + (f"; {error.fix}" if error.fix and "--" not in error.fix else ""))


def check_size(what: str, size: int, most: int, fix: str = "send fewer rows at a time") -> None:
    """Raises Refusal (413) where there are more of something than may be. what: such as "tokens in this request"."""
    if size > most:
        raise Refusal(413, f"there are {size:,} {what}, and at most {most:,} are taken; {fix}")


def overloaded(wait_seconds: float) -> Refusal:
    """429. wait_seconds: after which there is room, as far as is known."""
    seconds = max(1, min(60, round(wait_seconds)))
    return Refusal(429, f"the queue is full; try again in {seconds} s", {"Retry-After": str(seconds)})


def server_failed() -> Refusal:
    """500. What failed is in the log alone, for it may hold words of a request."""
    return Refusal(500, "the server failed; its log says where")
