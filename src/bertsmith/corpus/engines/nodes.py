"""What the machines of a cluster must have in common for a part to be the same whichever of them makes it."""

from __future__ import annotations

import hashlib
import platform
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.base.versions import version_of

# Whose versions decide what a part holds. Python's own does too, by its tables of Unicode.
_DECIDING = ("numpy", "tokenizers", "sentencex", "mwparserfromhell", "nanotoken", "pyarrow", "datasketch", "zstandard")
# The rooms whose code decides what a shard holds.
_ROOMS = ("base", "rows", "tokens", "corpus")


@dataclass(frozen=True)
class Common:
    """What every node has to find as the driver has it. seen: a file in the shared folder. token: what it holds."""

    seen: Path
    token: str
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def here(cls, seen: Path, token: str) -> Common:
        """The driver's; writes the file."""
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.write_text(token, encoding="utf-8")
        return cls(seen, token, versions())


@cache
def versions() -> tuple[tuple[str, str], ...]:
    """(name, version) of all that decides what a part holds; our own code by a hash of its text as well."""
    found = [("Python", platform.python_version()), ("bertsmith", f"{bertsmith.__version__}, code {_code()}")]
    return (*found, *((name, version_of(name) or "none") for name in _DECIDING))


def _code() -> str:
    """Tells copies of one version that were changed since. Only what the parts run is read."""
    package = Path(bertsmith.__file__).parent
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((package / room).rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


@cache
def check_node(common: Common) -> None:
    """Checks this process's node, once. Raises BertsmithError that names the node and what it has otherwise."""
    node = socket.gethostname()
    differing = [
        f"{name} {here} there, {wanted} at the driver"
        for (name, here), (_, wanted) in zip(versions(), common.versions, strict=True)
        if here != wanted
    ]
    if differing:
        what = f"the node {node} has other versions: {'; '.join(differing)}"
        raise BertsmithError(what, node, "install the same Python, bertsmith and requirements on every node")
    try:
        token = common.seen.read_text(encoding="utf-8")
    except OSError:
        token = ""
    if token != common.token:
        raise BertsmithError(
            f"the node {node} does not see the folder in which the corpus is made",
            common.seen.parent,
            "give --out in a folder that every node mounts at the same path, such as one on NFS or Lustre",
        )
