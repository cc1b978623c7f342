"""The entry point: finds the verb, runs it, and turns errors into a message and an exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import bertsmith
from bertsmith.base import errors, log
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import bench, data, distill, export, plan, quickstart, report, serve, train, use
from bertsmith.cli.ending import tell
from bertsmith.cli.verb import EVERYWHERE, Call, Verb
from bertsmith.recipes.flags import wants_help

_GROUPS = (quickstart, data, plan, train, distill, report, use, export, serve, bench)
VERBS: dict[str, Verb] = {name: verb for group in _GROUPS for name, verb in group.VERBS.items()}
"""All verbs, in the order in which text flows through them."""
# Verbs, and words in place of one, whose result goes to standard output.
_PRINTING = ("help", "--version", "inspect", "verify", "plan", "evaluate", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (default: the process's own) and returns its exit status."""
    # MKL sums in another order for another number of rows, so that in fp32 a sequence's neighbours would change its
    # last bits. Set before torch is imported, the variable stops that, at 2% of its speed. A value of the user's stays.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads that wait for one another spin before they sleep, 30 times as long by default. On a busy machine they
        # take the cores that the others need for that (decision 024). Read when torch loads GCC's OpenMP.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if not {"RANK", "SLURM_PROCID"}.isdisjoint(os.environ):
        # PyTorch's stack traces of lost connections would bury the one line that names the lost rank.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    _open_what_is_closed()
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(os.devnull, "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file's name may hold what is not UTF-8
            stream.reconfigure(errors="backslashreplace")
    args = list(sys.argv[1:] if argv is None else argv)
    everywhere = tuple(flag for flag in EVERYWHERE if flag in args)
    log.configure(quiet="--quiet" in everywhere, debug="--debug" in everywhere)
    try:
        status = _run([token for token in args if token not in EVERYWHERE], everywhere) or errors.EXIT_DONE
        _flush("stdout")
        return status
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        return errors.EXIT_DONE
    except (Exception, KeyboardInterrupt) as error:
        status, text = tell(error, debug="--debug" in everywhere)
        # A rank that failed before the ranks met; from there on they report their errors themselves.
        number = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
        with suppress(OSError):
            print(text if number == "0" else f"rank {number}: {text}", file=sys.stderr)
        return status
    finally:
        for name in ("stdout", "stderr"):
            try:
                _flush(name)
            except OSError:
                setattr(sys, name, None)  # Python would fail on it once more at its own end


def _open_what_is_closed() -> None:
    """Gives standard streams that are closed, as by a shell's 2>&-, a file of their number for this process and those
    that it starts. A pipe between processes would take the number else, and a worker closes its standard input."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # which has the lowest number that is free


def _flush(name: str) -> None:
    if (stream := getattr(sys, name)) is not None:
        stream.flush()


def _run(args: list[str], everywhere: tuple[str, ...]) -> int | None:
    name, rest = (args[0], args[1:]) if args else ("--help", [])
    if sys.stdout is None and (name in _PRINTING or wants_help([name, *rest])):
        raise BertsmithError("standard output is closed", "standard output", "leave it open: the result is printed")
    if name in ("--help", "-h", "help"):
        print(_overview())
    elif name == "--version":
        print(f"bertsmith {bertsmith.__version__}")
    elif name not in VERBS:
        raise BertsmithError(f"there is no verb '{name}'", "bertsmith", errors.nearest(name, VERBS))
    else:
        verb = VERBS[name]
        try:
            return verb.run(Call(f"bertsmith {name}", verb.description(), rest, everywhere))
        except SystemExit as end:  # tyro ends so after --help
            if end.code:
                raise
    return None


def _overview() -> str:
    """The verbs in the order of a pipeline, a line each."""
    verbs = "\n".join(f"  {name:<12}{verb.summary.splitlines()[0]}" for name, verb in VERBS.items())
    return (
        "usage: bertsmith VERB ... [--quiet] [--debug]\n\n"
        "Forges BERT encoders: raw text goes in, a pre-trained, fine-tuned, served encoder comes out.\n\n"
        f"{verbs}\n\n"
        "bertsmith VERB --help lists its flags, with an example."
    )
