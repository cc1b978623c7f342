"""What routes stand on: the models by name, whether the server is ready, and the way of a request through it."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastapi import Request, Response
from pydantic_core import to_json

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import say, warn
from bertsmith.inference.server.batcher import Batcher, Lane, ModelFailed
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.metrics import Account, Metrics
from bertsmith.inference.server.models import Asked, Cut, Encoded, Model, TextModel, open_model
from bertsmith.inference.server.refusals import Refusal, check_size, overloaded

# The threads in which rows are made ready and answered. What is logged there may hold texts.
ROWS_THREAD = "rows"
_LONG_BYTES, _LONG_TOKENS, _LONG_VECTORS = 65_536, 8192, 256
"""A body that is longer, and the answer for more tokens, or of more vectors, takes tens of milliseconds or seconds of
such a thread, so there is another one for these."""
_MOST_LONG, _TOKENS_A_LONG = 16, 16_384
"""So many requests with long bodies may be in the server at a time, for each may take seconds; or more, where a queue
takes more tokens than these have."""
_LONG_SECONDS = "5"  # after which one of them will have gone, about
MODELS = "/models/"
TRUNCATED_HEADER, EMPTY_HEADER = "X-Truncated-Tokens", "X-Empty-Rows"
_ROWS_IN_HEADER = 100  # proxies and clients take headers of a few kilobytes
_MOST_BESIDE_QUEUES = 512
"""Requests that are encoded, computed or answered at a time: with a small model that is where they wait."""
_FEW_ITEMS = 16  # to write these takes less time than a change of threads
_BYTES_A_TOKEN = 8  # more than text has, so that nothing that fits is refused by its size
T = TypeVar("T")


class Service:
    """The models of a server and their queues.

    folders: of the models, by name. state: "loading" until all are loaded, "stopping" once a signal stops it.
    token: what clients must send; "" for none. hosts: names that it answers to; None for any. active: requests that a
    route works on. long: those of them with long bodies.
    """

    def __init__(
        self, folders: Mapping[str, Path], limits: Limits, token: str = "", hosts: Collection[str] | None = None
    ) -> None:
        self.folders, self.limits, self.token, self.hosts = dict(folders), limits, token, hosts
        self.models: dict[str, Model] = {}
        self.state: Literal["loading", "ready", "stopping"] = "loading"
        self.active = self.long = 0
        self.metrics = Metrics()
        self.batcher = Batcher(limits, self.metrics)
        # One thread, and one for what is long: they hold Python's lock most of the time anyway.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=ROWS_THREAD)
        self._long_pool = ThreadPoolExecutor(1, thread_name_prefix=f"{ROWS_THREAD}-long")

    async def load(self, run_by: Mapping[str, str]) -> None:
        """Loads the models and begins to compute. run_by: as of `open_model`. Raises BertsmithError for one that cannot
        be served."""
        loop = asyncio.get_running_loop()
        for name, folder in self.folders.items():
            model = await loop.run_in_executor(None, open_model, name, folder, run_by, self.limits)
            say(f"{name}: {model.kind}, {model.precision}, rows of up to {model.max_length} tokens, from {folder}")
            self.models[name] = model
        self.batcher.start([lane for model in self.models.values() for lane in model.lanes])
        if self.state == "loading":
            self.state = "ready"

    def close(self, seconds: float) -> bool:
        """Drops what waits and ends the threads; as `Batcher.close`."""
        for pool in (self._pool, self._long_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        return self.batcher.close(seconds)

    def check_ready(self) -> None:
        """Raises Refusal (503) while models are loaded, once the server stops, and where nothing computes."""
        if self.state == "ready" and not self.batcher.works:
            raise Refusal(503, "nothing is computed any more; the server must be started again")
        if self.state != "ready":
            what = "the models are being loaded" if self.state == "loading" else "the server is stopping"
            raise Refusal(503, f"{what}; try again", {"Retry-After": "2"})

    def check_room(self, path: str, body_bytes: int) -> None:
        """Raises Refusal (429) where all queues that a request of so many bytes may come to are full, and where too
        many requests are beside the queues."""
        if self.active - sum(len(lane.waiting) for lane in self.batcher.lanes) >= _MOST_BESIDE_QUEUES:
            raise overloaded(self.batcher.wait_seconds())
        self._is_long(body_bytes)
        if path.endswith("/tokenize"):  # it comes to no queue
            return
        name = path.split("/")[2] if path.startswith(MODELS) else ""
        models = [self.models[name]] if name in self.models else list(self.models.values())
        refusals = []
        for model in models:
            lane = model.lane
            if isinstance(model, TextModel) and path.endswith("/embed_all"):
                lane = model.token_lane
            try:
                self.batcher.check_room(lane, min(body_bytes // _BYTES_A_TOKEN, self.limits.queue_tokens))
            except Refusal as refusal:
                refusals.append(refusal)
            else:
                return
        if refusals:
            raise refusals[0]

    def _is_long(self, body_bytes: int) -> bool:
        """Whether a body is long. Raises Refusal (429) where there are too many such."""
        long = body_bytes > _LONG_BYTES
        if long and self.long >= (most := max(_MOST_LONG, self.limits.queue_tokens // _TOKENS_A_LONG)):
            what = f"{most} requests with bodies of more than {_LONG_BYTES:,} bytes are in the server already"
            raise Refusal(429, f"{what}; try again in {_LONG_SECONDS} s", {"Retry-After": _LONG_SECONDS})
        return long

    @contextmanager
    def working_on(self, account: Account, body_bytes: int) -> Iterator[None]:
        """Counts a request whose body has come while a route works on it. Raises Refusal (429) where too many have long
        bodies."""
        account.long = long = self._is_long(body_bytes)
        self.active, self.long = self.active + 1, self.long + long
        try:
            yield
        finally:
            self.active, self.long = self.active - 1, self.long - long

    def named(self, name: str) -> Model:
        """Raises Refusal: 404 for a model that there is not, 503 where it may come yet."""
        if name not in self.models:
            self.check_ready()
            raise Refusal(404, f"there is no model '{name[:80]}' here; {nearest(name[:80], self.models)}")
        return self.models[name]

    def model(
        self, request: Request, able: Callable[[Model], bool], what: str, fix: str = "", name: str | None = None
    ) -> Model:
        """The model of a request: the one of this name, or else in its path, or the only one that is able. what: such
        as "vectors of texts". fix: where there is none.

        Raises Refusal: 424 where the model is not able, or none is; 422 where several are; 404 for one not there.
        """
        name = request.path_params.get("model") if name is None else name
        found = [self.named(name)] if name is not None else list(self.models.values())
        if name is not None:
            account_of(request).model = found[0].name
        fit = [model for model in found if able(model)]
        if not fit:
            kinds = ", ".join(f"{model.name} ({model.kind})" for model in found)
            why = f"no model here gives {what}; there is {kinds}"
            if name is not None:
                why = f"{name} does not give {what}; it is a model of the kind {found[0].kind}"
            raise Refusal(424, f"{why}; {fix}" if fix else why)
        if len(fit) > 1:
            names = ", ".join(model.name for model in fit)
            path = f"/models/{fit[0].name}{request.url.path.rstrip('/')}"
            raise Refusal(422, f"several models give {what}: {names}; name one in the path, as in {path}")
        account_of(request).model = fit[0].name
        return fit[0]

    async def in_rows_thread(self, request: Request, function: Callable[..., T], *values: Any) -> T:
        """Runs what takes a while for a request beside the event loop."""
        pool = self._long_pool if account_of(request).long else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, function, *values)

    async def answer(self, request: Request, value: Any, encoded: Encoded | None = None) -> Response:
        """As `answer`, beside the event loop unless it is short."""
        if isinstance(value, list) and len(value) <= _FEW_ITEMS and not any(isinstance(each, list) for each in value):
            return answer(value, encoded)
        return await self.in_rows_thread(request, answer, value, encoded)

    async def in_time(self, work: Awaitable[T]) -> T:
        """Raises Refusal (504) after `request_seconds`."""
        try:
            async with asyncio.timeout(self.limits.request_seconds):
                return await work
        except TimeoutError:
            what = f"there was no answer within {self.limits.request_seconds:g} s"
            raise Refusal(504, f"{what}; send fewer rows, or try again later") from None

    async def outputs(
        self,
        request: Request,
        model: Model,
        asked: Asked,
        cut: Cut,
        lane: Lane | None = None,
        most_tokens: int | None = None,
    ) -> tuple[Encoded, list[Any]]:
        """The rows of a request, encoded, and what the model gives for their sequences. lane: in place of the model's.
        most_tokens: that an answer with a vector for each of them may have.

        Raises Refusal: 413 for too many or too long rows, 422 for rows that cannot be used, 424 where the model fails,
        429 where the queue is full, 504 after `request_seconds`.
        """
        account = account_of(request)
        if not asked.rows:
            raise Refusal(422, "there are no rows; give at least one")
        self.check_rows(asked.rows)

        async def found() -> tuple[Encoded, list[Any]]:
            encoded = await self.in_rows_thread(request, model.encode, asked, cut)
            account.rows, account.tokens = len(asked.rows), int(encoded.sequences.lengths.sum())
            account.truncated, account.empty = encoded.sequences.truncated.rows, len(encoded.empty)
            if most_tokens is not None:
                check_size("tokens in this answer", account.tokens, most_tokens)
            vectors = account.tokens if most_tokens is not None else account.rows * isinstance(model, TextModel)
            account.long = account.tokens > _LONG_TOKENS or vectors > _LONG_VECTORS
            return encoded, await self.batcher.outputs(lane or model.lane, encoded.sequences)

        try:
            return await self.in_time(found())
        except ModelFailed as failed:
            cause = failed.__cause__
            if isinstance(cause, BertsmithError):
                raise Refusal(424, f"the model failed: {cause.what}") from failed
            assert cause is not None
            warn(f"{model.name} failed:\n{raised_in(cause)}")
            raise Refusal(424, f"the model failed ({type(cause).__name__}); the server's log says how") from failed

    def check_rows(self, rows: Sequence[Any]) -> None:
        """Raises Refusal (413) for too many."""
        if len(rows) > self.limits.rows:
            raise Refusal(413, f"this request has {len(rows):,} rows; send at most {self.limits.rows:,} at a time")


def raised_in(error: BaseException) -> str:
    """Where an error was raised and its type. Not what it says, for that may hold words of a request."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__


def account_of(request: Request) -> Account:
    """What is known of a request."""
    account: Account = request.state.account
    return account


def _json(value: Any) -> bytes:
    """Raises Refusal (424) for a number that is not finite, which JSON does not have."""
    # The items of a list one by one, so that other threads have their turn.
    written = b"[" + b",".join(map(to_json, value)) + b"]" if isinstance(value, list) else to_json(value)
    if b"NaN" in written or b"Infinity" in written:  # such a number, or a text about one
        json.loads(written, parse_constant=_refuse_constant)
    return written


def _refuse_constant(name: str) -> None:
    raise Refusal(424, f"the model failed: it gave a number that is not finite ({name})")


def answer(value: Any, encoded: Encoded | None = None) -> Response:
    """JSON. Where rows lost tokens, headers say how many of each of the first, and in all; of `Encoded.empty` the first
    and how many there are."""
    headers = {}
    if encoded is not None and encoded.sequences.truncated.rows:
        lost = encoded.sequences.row_lost_tokens
        headers[TRUNCATED_HEADER] = ",".join(map(str, lost[:_ROWS_IN_HEADER].tolist()))
        headers[TRUNCATED_HEADER + "-Total"] = str(int(lost.sum()))
    if encoded is not None and encoded.empty:
        headers[EMPTY_HEADER] = ",".join(map(str, encoded.empty[:_ROWS_IN_HEADER]))
        headers[EMPTY_HEADER + "-Total"] = str(len(encoded.empty))
    return Response(_json(value), media_type="application/json", headers=headers)
