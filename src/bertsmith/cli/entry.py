"""The entry point: finds the verb, runs it, and turns errors into a message and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import bertsmith
from bertsmith.base import errors, log
from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.cli.verb import Call
from bertsmith.cli.verbs import VERBS


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (default: the process's own) and returns its exit status."""
    # MKL sums in another order for another number of rows, so that in fp32 a sequence's neighbours would change its
    # last bits. Set before torch is imported, the variable stops that, at 2% of its speed. A value of the user's stays.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    args = list(sys.argv[1:] if argv is None else argv)
    common = {name: f"--{name}" in args for name in ("quiet", "debug")}
    log.configure(**common)
    try:
        _run([token for token in args if token not in ("--quiet", "--debug")])
    except BertsmithError as error:
        if common["debug"]:
            traceback.print_exc()
        print(error, file=sys.stderr)
        return errors.EXIT_USER_INPUT
    except StoppedAfterSaving as stopped:
        print(stopped, file=sys.stderr)
        return stopped.status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stdout = None
    except Exception:  # any other exception is a bug
        traceback.print_exc()
        print("this is a bug in Bertsmith, not in your input: please report it with the lines above", file=sys.stderr)
        return errors.EXIT_OUR_BUG
    return errors.EXIT_DONE


def _run(args: list[str]) -> None:
    name, rest = (args[0], args[1:]) if args else ("--help", [])
    if name in ("--help", "-h", "help"):
        print(_overview())
    elif name == "--version":
        print(f"bertsmith {bertsmith.__version__}")
    elif name not in VERBS:
        raise BertsmithError(f"there is no verb '{name}'", "bertsmith", errors.nearest(name, VERBS))
    else:
        verb = VERBS[name]
        try:
            verb.run(Call(f"bertsmith {name}", verb.description(), rest))
        except SystemExit as end:  # tyro ends so after --help
            if end.code:
                raise


def _overview() -> str:
    """The verbs in river order, a line each."""
    lines = [f"  {name:<12}{verb.summary.splitlines()[0]}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: bertsmith VERB ... [--quiet] [--debug]",
            "\nForges BERT encoders: raw text goes in, a pre-trained, fine-tuned encoder comes out.\n",
            *lines,
            "",
            "bertsmith VERB --help lists its flags, with an example.",
        ]
    )
