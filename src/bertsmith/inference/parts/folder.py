"""Finished parts on the disk, beside the file that they will become, with what they were made from.

OUT.parts/made_from.json   the input, the model and the flags: parts of others are never joined with these
OUT.parts/00000000.part    what is written for the rows of a part
OUT.parts/00000000.bad     its rows that cannot be used, a line of JSON each
OUT.parts/00000000.json    its account, and a checksum of the three, written last: a part is finished where this is
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import locked
from bertsmith.base.log import warn
from bertsmith.inference.parts.part import Account, Answered
from bertsmith.tasks.reading.bad_rows import line_of

_MADE_FROM = "made_from.json"
_JOINED = "joined"
_DOING = "writing these parts"
_COPIED_AT_ONCE = 1 << 20
_CHECKED = ("bytes", "sha256")
"""Of a part, beside its account."""


class PartsFolder:
    """The parts of one file. path: their folder. bad: where the rows go that cannot be used. out: the file; where it is
    a link, the one that it leads to. piped: whether the rows come through a pipe, so that nothing can be resumed."""

    def __init__(self, out: Path, piped: bool = False) -> None:
        self._piped = piped
        self.out = out = Path(os.path.realpath(out)) if os.path.islink(out) else out
        self.path, self.bad = out.with_name(f"{out.name}.parts"), out.with_name(f"{out.name}.errors.jsonl")

    def check(self) -> None:
        """Raises BertsmithError where this file cannot be written, as far as that shows before any work."""
        for path in (self.out, self.bad):
            files.check_file(path)
        if self.out.is_symlink():
            raise BertsmithError("this link leads to itself", self.out, "remove it, or choose another --out")

    def owns(self, path: Path) -> bool:
        """Whether a file is one that is written here, and may be replaced or removed."""
        path = path.resolve()
        return path in (self.out.resolve(), self.bad.resolve()) or self.path.resolve() in path.parents

    @contextmanager
    def held(self, made_from: Mapping[str, Any], resume: bool) -> Iterator[dict[int, Account]]:
        """Holds the folder for this process, and gives the accounts of the parts that it has already. A damaged part is
        named and left out, so that it is done again.

        Raises BertsmithError where parts are there and are not to be continued, or were made from something else.
        """
        with locked(self.path, doing=_DOING):
            self._refuse_parts(resume)
            if self.finished_parts():
                self._check(made_from)
            else:
                files.write_json(self.path / _MADE_FROM, made_from)
            finished = self._finished()
            try:
                yield finished
            except BaseException:
                if not self.finished_parts():
                    self.remove()
                raise

    def refuse_to_begin(self, resume: bool) -> None:
        """Raises BertsmithError where parts are there and are not to be continued, or another process writes them."""
        if not resume and self.finished_parts():
            with locked(self.path, doing=_DOING):  # the message says to delete them
                self._refuse_parts(resume)

    def _refuse_parts(self, resume: bool) -> None:
        if not resume and (parts := self.finished_parts()):
            what = f"finished parts of an earlier run are there ({parts:,} of them)"
            fix = "" if self._piped else "continue it with --resume, or "
            raise BertsmithError(what, self.path, f"{fix}delete this folder to begin anew")

    def finished_parts(self) -> int:
        """How many there are."""
        return sum(self.part(number).is_file() for number in self._numbers())

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.path.glob("*.json") if path.stem.isdecimal())

    def _finished(self) -> dict[int, Account]:
        found = {}
        for number in self._numbers():
            account, damage = self._read(number)
            if damage:
                warn(f"{self._file(number, 'part')} is damaged ({damage}): its rows are done again")
            else:
                found[number] = account
        return found

    def _read(self, number: int) -> tuple[Account, str]:
        """The account of a part, and what is wrong with what is kept of it: "" where it is as it was written."""
        path = self._file(number, "json")
        try:
            values = files.read_json(path)
            written = {name: values.pop(name, None) for name in _CHECKED} if isinstance(values, dict) else {}
            account = Account.from_json(values)
        except (BertsmithError, ValueError):
            return Account(), f"{path.name} does not say what became of its rows"
        kept, bad = self.part(number), self._file(number, "bad")
        if not kept.is_file():
            return account, "it is missing"
        found = _checks(account, kept.read_bytes(), bad.read_bytes() if bad.is_file() else b"")
        if None in written.values():
            return account, "it has no checksum"
        if found["bytes"] != written["bytes"]:
            return account, f"it has {found['bytes']:,} bytes, and {written['bytes']} were written"
        return account, "" if found == written else "its checksum is not that of what was written"

    def _check(self, made_from: Mapping[str, Any]) -> None:
        was = files.read_json(self.path / _MADE_FROM, "delete this folder to begin anew")
        other = [name for name in made_from if not isinstance(was, dict) or was.get(name) != made_from[name]]
        if other:
            before, now = was.get(other[0]) if isinstance(was, dict) else None, made_from[other[0]]
            if isinstance(before, dict) and isinstance(now, dict):
                changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
                before, now = ({name: each.get(name) for name in changed} for each in (before, now))
            what = f"these parts were made from another {' and '.join(other)}"
            change = f"{before!r} then, {now!r} now"
            fix = "give the command as it was, or delete this folder to begin anew"
            raise BertsmithError(f"{what} ({change})", self.path, fix)

    def write(self, number: int, answered: Answered) -> None:
        """Writes a finished part, whole or not at all. Raises BertsmithError where the disk refuses."""
        for suffix in ("json", "bad"):  # of another run, which lost its payload or was killed in this part
            self._file(number, suffix).unlink(missing_ok=True)
        files.write_whole(self.part(number), lambda file: file.write(answered.payload))
        bad = b"".join(map(line_of, answered.bad))
        if bad:
            files.write_whole(self._file(number, "bad"), lambda file: file.write(bad))
        checks = _checks(answered.account, answered.payload, bad)
        files.write_json(self._file(number, "json"), answered.account.to_json() | checks)

    def check_whole(self, parts: int) -> None:
        """Raises BertsmithError where one of so many parts is not as it was written."""
        for number in range(parts):
            if damage := self._read(number)[1]:
                again = "with --resume, which does this part again"
                fix = f"give the same command {'and its rows once more' if self._piped else again}"
                raise BertsmithError(f"this finished part is damaged: {damage}", self.part(number), fix)

    def join(self, parts: int, join: Callable[[BinaryIO, Sequence[Path]], object]) -> None:
        """Joins so many parts into a file in this folder, which a kill leaves there. Raises BertsmithError where the
        disk refuses."""
        payloads = [self.part(number) for number in range(parts)]
        files.write_whole(self.path / _JOINED, lambda file: join(file, payloads))

    def put_in_place(self) -> None:
        """Makes what was joined the file, and removes the parts. Raises BertsmithError where the disk refuses."""
        with files.disk_errors(self.out):
            os.replace(self.path / _JOINED, self.out)
            files.sync(self.out.parent)
        self.remove()

    def write_bad(self, parts: int) -> None:
        """Writes the rows that cannot be used of so many parts into one file."""
        found = [self._file(number, "bad") for number in range(parts)]
        files.write_whole(self.bad, lambda file: copy_files([each for each in found if each.is_file()], file))

    def remove(self) -> None:
        """Removes the folder if it is there, when its parts were joined or are of no use to anybody."""
        if self.path.is_dir():
            files.remove_folder(self.path)

    def part(self, number: int) -> Path:
        """What is written for the rows of a part."""
        return self._file(number, "part")

    def _file(self, number: int, suffix: str) -> Path:
        return self.path / f"{number:08d}.{suffix}"


def _checks(account: Account, payload: bytes, bad: bytes) -> dict[str, Any]:
    """The bytes of a part, and a checksum of all that is kept of it."""
    checksum = hashlib.sha256(json.dumps(account.to_json()).encode())
    checksum.update(payload)
    checksum.update(bad)
    return dict(zip(_CHECKED, (len(payload), checksum.hexdigest()), strict=True))


def copy_files(paths: Sequence[Path], file: BinaryIO) -> None:
    """Copies files into an open one, one after the other."""
    for path in paths:
        with open(path, "rb") as part:
            shutil.copyfileobj(part, file, _COPIED_AT_ONCE)


Join = Callable[[BinaryIO, Sequence[Path], Account], object]
"""Writes what parts hold into one file; the account is that of all of them."""


def joined_lines(file: BinaryIO, parts: Sequence[Path], account: Account) -> None:
    """The Join of lines, with a header where there is one."""
    file.write(account.header.encode())
    copy_files(parts, file)
