"""What the command line says of an error, and with which status it ends."""

from __future__ import annotations

import traceback

from bertsmith.base import errors
from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import StoppedAfterSaving

_BUG = "this is a bug in Bertsmith, not in your input: please report it with the lines above"


def tell(error: BaseException, debug: bool = False) -> tuple[int, str]:
    """The exit status and the message of what ended a verb. debug: with the traceback of a user's error too."""
    if isinstance(error, StoppedAfterSaving):
        return error.status, str(error)
    if isinstance(error, KeyboardInterrupt):
        return errors.EXIT_INTERRUPTED, "interrupted"
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, BertsmithError):
        return error.status, f"{trace}{error}" if debug else str(error)
    return errors.EXIT_OUR_BUG, f"{trace}{_BUG}"
