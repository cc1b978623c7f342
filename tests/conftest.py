"""What every test stands on: no network, few threads, and real data where the machine has it."""

from __future__ import annotations

import importlib
import importlib.util
import ipaddress
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# Set before torch or a tokenizer is imported anywhere, and inherited by the processes that tests start. One thread: for
# tiny models more of them cost time, and on a busy machine many times as much.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As the command line has them. Without the first, runs of commands and of calls in this process differ in their last
# bits on Intel.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

# Started in the background by a shell, tests would inherit an ignored SIGINT, and so would the processes that they end
# with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A test must pass on a busy machine too, so nothing may depend on how long an example takes.
with suppress(ImportError):  # tests/gpu runs where it is not installed, too
    import hypothesis

    hypothesis.settings.register_profile("bertsmith", deadline=None)
    hypothesis.settings.load_profile("bertsmith")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Lets the settings of pytest-timeout be there without it, as on a machine with a GPU."""
    if importlib.util.find_spec("pytest_timeout") is None:
        parser.addini("timeout", "seconds of a test, without effect here")


ROOT = Path(__file__).resolve().parent.parent
runpy.run_path(str(ROOT / "benchmarks" / "checkout.py"))
_LOCAL_NAMES = {None, "", "localhost", "localhost.localdomain", "ip6-localhost"}


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The public data that tests read: BERTSMITH_DATA, else ~/.cache/bertsmith-data; skips where there is none."""
    folder = Path(os.environ.get("BERTSMITH_DATA") or Path.home() / ".cache" / "bertsmith-data")
    unpack = ROOT.parent / "shared" / "data" / "unpack"
    if unpack.is_file():  # holds a lock of its own, and does only what is missing
        done = subprocess.run([str(unpack), str(folder)], capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"the data could not be laid out in {folder}: {done.stderr.strip()[-300:]}")
    if not folder.is_dir():
        pytest.skip(f"no data: {folder} is not there; name the folder with BERTSMITH_DATA")
    return folder


@pytest.fixture(scope="session")
def real_data(data_folder: Path) -> Callable[[str], Path]:
    """Gives the path of a part of the data, such as "wiki/enwiki-2015/AA"; skips the test where it is missing."""

    def find(part: str) -> Path:
        path = data_folder / part
        if not path.exists():
            pytest.skip(f"no data: {path} is not there")
        return path

    return find


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small encoder that was not trained, of two layers or as many as the module's LAYERS says."""
    from made_rows import CONFIG, made_model

    layers = getattr(request.module, "LAYERS", CONFIG.num_hidden_layers)
    return made_model(tmp_path_factory.mktemp("encoder"), replace(CONFIG, num_hidden_layers=layers))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a script of `benchmarks` by its name; the next test imports all of them anew."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for path in (ROOT / "benchmarks").glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def forked_children() -> Iterator[None]:
    """The processes of a bench come from the fork server, and do not import torch anew."""
    from bertsmith.bench import process
    from made_children import FORKING
    from made_runs import fork_server

    fork_server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "subprocess", FORKING)
        yield


@pytest.fixture(scope="session", autouse=True)
def closed_network() -> Iterator[None]:
    """Every connection that leaves the machine is refused, so a test that needs the network fails and says so."""
    patch = pytest.MonkeyPatch()
    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, _only_local(getattr(socket.socket, name)))
    patch.setattr(socket, "getaddrinfo", _only_local_names(socket.getaddrinfo))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def no_kernels_left_behind() -> Iterator[None]:
    """Training loads C++ kernels into the process; the next test begins without them."""
    yield
    module = sys.modules.get("bertsmith.model.cpu.library")
    if module is not None:
        module.unload()
        module._kernels = {}


@pytest.fixture(autouse=True)
def no_log_left_behind() -> Iterator[None]:
    """A command line that a test runs sets up our log for its process, where a choice is said once; the next test
    begins with a plain logger that has said nothing."""
    yield
    module = sys.modules.get("bertsmith.base.log")
    if module is None:
        return
    module._said.clear()
    if any(isinstance(each, module._AboveBars) for each in module.logger.handlers):
        module.logger.handlers = [each for each in module.logger.handlers if not isinstance(each, module._AboveBars)]
        module.logger.propagate = True
        module.logger.setLevel("NOTSET")


@pytest.fixture
def kernels() -> None:
    """Loads the C++ kernels; skips where there is no compiler for them, and fails where they do not compile."""
    from bertsmith.model.cpu.prepare import load

    if sys.platform != "linux" or not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("the C++ kernels need Linux and a C++ compiler")
    assert load()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is said, although it may have been said before."""
    from bertsmith.base import log

    monkeypatch.setattr(log.logger, "propagate", True)
    monkeypatch.setattr(log, "_said", set())
    caplog.set_level("INFO", logger="bertsmith")
    return caplog


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed: drawing takes longer than the rest of a report."""
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)


@pytest.fixture
def marked_memory() -> Iterator[None]:
    """Tensors that are not written to hold NaN, and not what an earlier one left there."""
    import torch

    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """PyTorch's compiler knows no graph of an earlier test, nor a later test one of this."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=["kernels", "operators"])
def both_ways(request: pytest.FixtureRequest) -> str:
    """Runs a test with the C++ kernels and with PyTorch's operators."""
    if request.param == "kernels":
        request.getfixturevalue("kernels")
    return str(request.param)


def _only_local(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX and not _is_local(address[0]):
            raise OSError(f"the tests have no network: a connection to {address} was tried")
        return connect(self, address)

    return guarded


def _only_local_names(look_up: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(host: Any, *args: Any, **options: Any) -> Any:
        if not _is_local(host):
            raise OSError(f"the tests have no network: the address of {host} was asked for")
        return look_up(host, *args, **options)

    return guarded


def _is_local(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in _LOCAL_NAMES or name == socket.gethostname():
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
