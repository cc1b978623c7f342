"""One file over HTTP: resumed where it was cut off, verified before it gets its name, never left half-written or wrong.

What was received so far is kept next to the file as `.NAME.part`; the download resumes from it only where the server
confirms that it still has the same bytes (If-Range, RFC 9110 section 13.1.5) or where a known checksum is compared at
the end.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bertsmith import __version__
from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, say, size, warn

_BLOCK = 1 << 18
_LONGEST_DELAY_SECONDS = 60.0
_TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}
OTHER_VERSION = "name a mirror by --url; if upstream published a new version, fetch it by hand and judge for yourself"
"""What to do about a file that is not the one on record."""
_LATER = "run the command again to resume; or name a mirror with --url"


@dataclass(frozen=True)
class Remote:
    """A file on a server. size_bytes: None where it is not known. algorithm, digest: of its checksum, "" for none."""

    url: str
    size_bytes: int | None = None
    algorithm: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Patience:
    """attempts: how many in a row may fail. delay_seconds: after the first; each further one waits twice as long.
    timeout_seconds: of a server that sends nothing."""

    attempts: int = 6
    delay_seconds: float = 1.0
    timeout_seconds: float = 60.0


@dataclass(frozen=True)
class Fetched:
    """A complete file. verified: whether it was compared with a checksum."""

    size_bytes: int
    sha256: str
    verified: bool


class _Passing(Exception):
    """A temporary failure. after_seconds: how long the server wants us to wait."""

    def __init__(self, what: object, after_seconds: float = 0.0) -> None:
        super().__init__(str(what))
        self.after_seconds = after_seconds


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to what anyone on the way could change."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise BertsmithError(f"the server sends us on to {newurl}, which is not https", req.full_url, _LATER)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Part:
    """What came so far of a file, and of which file."""

    def __init__(self, path: Path, url: str) -> None:
        self.name, self.path, self._url = path.name, path.with_name(f".{path.name}.part"), url
        self._state = path.with_name(f".{path.name}.part.json")
        self.validator, self.total = "", None
        try:
            state = json.loads(self._state.read_text(encoding="utf-8"))
            if state["url"] == url:
                self.validator, self.total = state["validator"], state["total"]
            else:
                self.discard()
        except (OSError, ValueError, KeyError, TypeError):
            self.discard()

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def begin(self, validator: str, total: int | None) -> None:
        """Empties it for a file of `total` bytes whose server knows it by `validator`."""
        self.discard()
        self.validator, self.total = validator, total
        files.write_json(self._state, {"url": self._url, "validator": validator, "total": total})

    def discard(self) -> None:
        self.validator, self.total = "", None
        self._state.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def finish(self, path: Path, fetched: Fetched, known: Callable[[Fetched], None]) -> None:
        """Gives the whole file its name. known: called with `fetched` before, when the file is on the disk."""
        files.sync(self.path)
        known(fetched)
        os.replace(self.path, path)
        self._state.unlink(missing_ok=True)


def fetch(
    remote: Remote, path: Path, patience: Patience | None = None, known: Callable[[Fetched], None] = lambda _: None
) -> Fetched:
    """Fetches a file to `path`, replacing what is there once the new one is whole and checked.

    known: called before the file has its name, so that what records it is never behind. Raises BertsmithError for what
    the server does not have or does not give, bytes that differ from the checksum or the size on record, a server that
    stays away, and a disk that is full; what came so far stays for the next call, but for wrong bytes.
    """
    patience = patience or Patience()
    with files.disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _Part(path, remote.url)
        while True:
            continued = _complete(remote, part, patience)
            fetched, found = _measured(part.path, remote)
            if found == remote.digest:
                part.finish(path, fetched, known)
                return fetched
            part.discard()
            if not continued:
                break
            warn(f"{path.name} was put together from several answers and is wrong; it is fetched again in one piece")
    what = f"checksum mismatch: {remote.algorithm} is {found}, expected {remote.digest}; the file was deleted"
    raise BertsmithError(what, remote.url, OTHER_VERSION)


def fetch_text(url: str, patience: Patience | None = None, most: int = 1 << 24) -> str:
    """A small text, in UTF-8. Raises BertsmithError as `fetch` does, and for more than `most` bytes."""
    patience = patience or Patience()
    for failures in range(1, patience.attempts + 1):
        try:
            with _open(url, {}, patience) as response:
                raw, total = next(_blocks(response, most + 1), b""), _total(response)
            if len(raw) > most:
                raise BertsmithError(f"this list of checksums is longer than {size(most)}", url, _LATER)
            _check_end(len(raw), total)
            return raw.decode(errors="replace")
        except _Passing as problem:
            _wait(problem, failures, patience, url)
    raise AssertionError("_wait raises at the last attempt")


def _measured(path: Path, remote: Remote) -> tuple[Fetched, str]:
    """What came, and its checksum by the algorithm that the published one has."""
    sha256 = files.sha256(path)
    found = files.checksum(path, remote.algorithm) if remote.algorithm else ""
    return Fetched(path.stat().st_size, sha256, bool(remote.algorithm)), found


def _complete(remote: Remote, part: _Part, patience: Patience) -> bool:
    """Fetches what is missing; returns whether the file is put together from several answers."""
    answers, failures, furthest = int(part.size > 0), 0, part.size
    while part.total is None or part.size != part.total:
        try:
            answers = answers + 1 if _take(remote, part, patience) else 1
            break
        except _Passing as problem:
            answers += 1
            failures = 1 if part.size > furthest else failures + 1
            furthest = max(furthest, part.size)
            _wait(problem, failures, patience, remote.url)
    return answers > 1


def _wait(problem: _Passing, failures: int, patience: Patience, url: str) -> None:
    """Waits before the next attempt, or gives up."""
    if failures >= patience.attempts:
        raise BertsmithError(f"the server failed {failures} times in a row: {problem}", url, _LATER) from problem
    delay = min(patience.delay_seconds * 2 ** (failures - 1), _LONGEST_DELAY_SECONDS)
    delay = max(delay, min(problem.after_seconds, _LONGEST_DELAY_SECONDS))
    say(f"  {problem}; trying again in {delay:.0f} s")
    time.sleep(delay)


def _take(remote: Remote, part: _Part, patience: Patience) -> bool:
    """One request for what is missing; returns whether it resumed from what was there. Raises _Passing."""
    if part.size and not (part.validator or remote.digest):
        say(f"  {part.name} is fetched from its beginning: nothing tells whether it has changed on the server")
        part.discard()
    have = part.size
    wanted = {"Range": f"bytes={have}-"} if have else {}
    if have and part.validator:
        wanted["If-Range"] = part.validator
    try:
        response = _open(remote.url, wanted, patience)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.discard()
        raise _Passing("the server has no such range; starting over") from error
    with response:
        validator, total = _validator(response), _total(response)
        goes_on = have > 0 and response.status == http.HTTPStatus.PARTIAL_CONTENT
        same = validator == part.validator and part.total in (None, total)  # a length may be said of a part alone
        if goes_on and not (same and _begin(response) == have):
            part.discard()
            raise _Passing("the file on the server has changed; starting over")
        _check_size(remote, total)
        if not goes_on:
            if have:
                say(f"  the server sends {part.name} from its beginning: it has changed, or cannot go on")
            part.begin(validator, total)
            have = 0
        if total is not None:
            check_space(part.path.parent, total - have, "the rest of the download", part.path.parent)
        _write(response, part, total if total is not None else remote.size_bytes, have)
    return goes_on


def _write(response: http.client.HTTPResponse, part: _Part, total: int | None, have: int) -> None:
    with open(part.path, "ab") as file, Progress(f"fetching {part.name}", total, "B") as progress:
        progress.skip(have)
        for block in _blocks(response):
            file.write(block)
            progress.advance(len(block))
    _check_end(part.size, total)


def _check_end(have: int, total: int | None) -> None:
    if total is not None and have < total:
        raise _Passing(f"the connection was cut at {size(have)} of {size(total)}")


def _open(url: str, headers: dict[str, str], patience: Patience) -> http.client.HTTPResponse:
    """Raises _Passing, HTTPError for a range that is not there, BertsmithError for all other refusals."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        _SecureRedirects,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    ours = {"User-Agent": f"bertsmith/{__version__}", "Accept-Encoding": "identity"}
    try:
        request = urllib.request.Request(url, headers=ours | headers)
        response: http.client.HTTPResponse = opener.open(request, timeout=patience.timeout_seconds)
    except urllib.error.HTTPError as error:
        if error.code in _TRY_AGAIN:
            after = error.headers.get("Retry-After", "")
            waits = float(after) if after.isdecimal() else 0.0
            raise _Passing(f"the server answers {error.code} {error.reason}", waits) from error
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        fix = "the file may have moved: name where it is now by --url, or look for it on the page of its authors"
        raise BertsmithError(f"the server answers {error.code} {error.reason}", url, fix) from error
    except urllib.error.URLError as error:
        raise _Passing(f"the server cannot be reached ({error.reason})") from error
    except (ValueError, http.client.InvalidURL) as error:  # a host, a port or a letter that none has
        fix = "correct --url; a letter beyond ASCII is written as its bytes, such as %C3%B6, and a space as %20"
        raise BertsmithError(f"this address cannot be used ({error})", url, fix) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Passing(f"the connection failed ({error!r})") from error
    if response.headers.get("Content-Encoding", "identity") != "identity":
        response.close()
        raise BertsmithError("the server compresses the file in transit although the request forbids it", url, _LATER)
    return response


def _blocks(response: http.client.HTTPResponse, most: int = _BLOCK) -> Iterator[bytes]:
    """What comes, in blocks of `most` bytes."""
    try:
        while block := response.read(most):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _Passing(f"the connection was cut ({type(error).__name__})") from error


def _validator(response: http.client.HTTPResponse) -> str:
    """The value for If-Range: a strong ETag, else the date; "" where there is neither."""
    etag = str(response.headers.get("ETag", ""))
    return etag if etag.startswith('"') else str(response.headers.get("Last-Modified", ""))


def _total(response: http.client.HTTPResponse) -> int | None:
    """The bytes of the whole file, where the server says."""
    ranged = str(response.headers.get("Content-Range", "")).rpartition("/")[2]
    said = ranged if ranged.isdecimal() else response.headers.get("Content-Length", "")
    partial = response.status == http.HTTPStatus.PARTIAL_CONTENT
    return int(said) if said.isdecimal() and (ranged.isdecimal() or not partial) else None


def _begin(response: http.client.HTTPResponse) -> int:
    """The first byte of a partial answer; -1 where the server does not say."""
    first = str(response.headers.get("Content-Range", "")).removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else -1


def _check_size(remote: Remote, total: int | None) -> None:
    if remote.size_bytes is not None and total is not None and total != remote.size_bytes:
        what = f"the server's file has {total:,} bytes, not the {remote.size_bytes:,} on record: it is another one"
        raise BertsmithError(what, remote.url, OTHER_VERSION)


def check_space(folder: Path, need: int, what: str, where: Path) -> None:
    """Raises BertsmithError where the disk of a folder has no room for so many bytes. what, where: that needs them, for
    the message."""
    free = shutil.disk_usage(folder).free
    if need > free:
        said = f"{what} needs {size(need)} of disk, only {size(free)} is free"
        raise BertsmithError(said, where, "free some space, or choose another folder with --out")
