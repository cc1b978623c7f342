"""What the command line says of an error, and with which status it ends."""

from __future__ import annotations

import errno
import re
import traceback

from bertsmith.base import errors
from bertsmith.base.errors import BertsmithError, ran_out_of_memory
from bertsmith.base.stopping import StoppedAfterSaving, stop_requested

_BUG = "this is a bug in Bertsmith, not in your input: please report it with the lines above"
_COMPILER = ("torch._inductor", "torch._dynamo")
_DAMAGED_LIBRARY = re.compile(r"(/\S+\.so): (file too short|invalid ELF header)")
_REFUSED = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "fix its permissions, or name what you may read and write"),
    errno.ENAMETOOLONG: "give a shorter name",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LESS_AT_ONCE = (
    "compute less at once: smaller batches, shorter texts or a smaller model; pretrain can find the micro-batches that "
    "fit (micro_batch_tokens: auto)"
)


def tell(error: BaseException, debug: bool = False) -> tuple[int, str]:
    """The exit status and the message of what ended a verb. debug: with the traceback of a user's error too."""
    if isinstance(error, StoppedAfterSaving):
        return error.status, str(error)
    if isinstance(error, KeyboardInterrupt):
        return errors.EXIT_INTERRUPTED, "interrupted"
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, (RuntimeError, MemoryError, OSError)) and ran_out_of_memory(error):
        lacked = (str(error) or "no memory").splitlines()[0]
        error = BertsmithError(f"memory ran out: {lacked}", fix=_LESS_AT_ONCE)
    compiling = type(error).__module__.startswith(_COMPILER)
    if compiling and (status := stop_requested()):
        what = "stopped while steps were compiled; a run continues from its last checkpoint with --resume"
        return status, f"{trace}{what}" if debug else what
    if compiling and (damaged := _DAMAGED_LIBRARY.search(str(error))):
        what = f"a file that the compiler keeps is damaged ({damaged[2]}), as by a stop while it was written"
        error = BertsmithError(what, damaged[1], "delete it and run the command again, which makes it anew")
    if isinstance(error, OSError) and error.filename is not None and error.errno in _REFUSED:
        what = f"this cannot be read or written ({error.strerror})"
        error = BertsmithError(what, error.filename, _REFUSED[error.errno])
    if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
        where = "standard output, shared memory or a file: the system does not say"
        fix = "free some space, or write to another place"
        error = BertsmithError(f"could not write: {error.strerror}", where, fix)
    if isinstance(error, BertsmithError):
        return error.status, f"{trace}{error}" if debug else str(error)
    return errors.EXIT_OUR_BUG, f"{trace}{_BUG}"
