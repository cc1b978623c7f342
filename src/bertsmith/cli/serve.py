"""`bertsmith serve`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from bertsmith.base.errors import BertsmithError
from bertsmith.cli.use import DeviceFlags
from bertsmith.cli.verb import Call, Verb, default_said, import_torch
from bertsmith.inference.server.limits import Limits

_TOKEN_VARIABLE = "BERTSMITH_TOKEN"


@dataclass(frozen=True)
class ServeFlags(DeviceFlags):
    """Flags of `serve`."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...")]
    """Runs or model folders, each under the name of its folder, or of another where it is written NAME=FOLDER."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is every one of this machine."""
    port: int = 8080
    """The port to listen on; 0 takes any free one, which is logged."""
    token: Annotated[str | None, default_said("none")] = None
    """What clients must send as Authorization: Bearer TOKEN. Other users of this machine can see flags: the variable
    BERTSMITH_TOKEN hides it."""
    limits: Limits = field(default_factory=Limits)
    """What is taken in, and how long things may take."""


def _serve(call: Call) -> None:
    flags = call.read(ServeFlags)
    models = named_folders(flags.models, call.prog)
    import_torch(new_shapes=True)
    try:
        from bertsmith.inference.server.serve import Settings, serve
    except ModuleNotFoundError as error:
        what = f"a server needs {error.name}, which is not installed"
        raise BertsmithError(what, call.prog, "pip install 'bertsmith[serve]'") from error
    name, token = "--token", flags.token
    if token is None and "--token" in call.given:
        what = "--token is None, as where a variable of the program that starts the server is not set"
        raise BertsmithError(what, call.prog, "give it a token, or leave it out")
    if token is None:
        name, token = _TOKEN_VARIABLE, os.environ.get(_TOKEN_VARIABLE)
    if token == "":
        what = f"{name} is set and empty, so that anybody could use the server"
        raise BertsmithError(what, call.prog, "give it a token, or do not set it")
    if token and (not token.isascii() or token != token.strip()):
        what = "a token has white space around it, or letters that a header cannot hold"
        raise BertsmithError(what, call.prog, "use ASCII letters and digits")
    serve(Settings(models, flags.host, flags.port, token or "", **flags.run_by(), limits=flags.limits))


def named_folders(models: tuple[str, ...], prog: str) -> dict[str, Path]:
    """The folders by the names that they are served under. Raises BertsmithError for a folder that is not there, and
    for names that are equal or cannot stand in a path."""
    found: dict[str, Path] = {}
    for each in models:
        # A path may have "=" in it, but a name may not.
        named = "=" in each and not Path(each).is_dir()
        name, _, folder = each.partition("=") if named else ("", "", each)
        path = Path(folder)
        name = name if named else _own_name(path)
        if not name or set(name) & set("/?#% "):
            raise BertsmithError(f"'{name}' cannot be the name of a model", each, "write NAME=FOLDER with another name")
        if name in found:
            what = f"two models are called '{name}'"
            raise BertsmithError(what, each, f"name one of them, as in other={folder}")
        if not folder or not path.is_dir():  # an empty one would be the present folder
            raise BertsmithError("this folder is not there", folder or repr(each), "name a run or a model folder")
        found[name] = path
    if not found:
        raise BertsmithError("no model is named", prog, f"name a run or a model folder; see {prog} --help")
    return found


def _own_name(folder: Path) -> str:
    """The name of a folder; of the model in a run, that of the run."""
    folder = folder.resolve()
    return folder.parent.name if folder.name == "model" else folder.name


VERBS = {
    "serve": Verb(
        "Serve models over HTTP: routes of Text Embeddings Inference, Hugging Face and OpenAI, and a page at /.",
        "  bertsmith serve runs/labels\n"
        "  bertsmith serve labels=runs/labels runs/squad runs/embed --host 0.0.0.0 --port 80 --limits.rows 64\n"
        "  curl localhost:8080/predict -H 'Content-Type: application/json' -d '{\"inputs\": \"a text\"}'",
        _serve,
    ),
}
