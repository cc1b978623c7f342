"""Promise: on a Ray cluster of several nodes the bytes are those of one machine, whatever dies on the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from made_corpora import OPTIONS, contents, made_parts, made_text, wait_for

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
pytest.importorskip("ray", reason="ray is not installed: pip install 'bertsmith[ray]'")

from ray.cluster_utils import Cluster

SMALL_PARTS = {**OPTIONS, "part_bytes": 6_000}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_text(tmp_path_factory.mktemp("source") / "text.txt")


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed") / "corpus"
    prepare(source, out, options=PrepareOptions(**SMALL_PARTS, workers=1))
    return contents(out)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without a core for parts, and two nodes of one core each: five processes a node, as on real machines."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def on(cluster: Any) -> PrepareOptions:
    return PrepareOptions(**SMALL_PARTS, engine="ray", address=cluster.address)


def workers_at_parts() -> list[int]:
    """Ray's worker processes that do one of our parts at this moment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::_on_node"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def disturbed(out: Path, stage: str, parts: int, disturb: Any) -> threading.Thread:
    """Calls `disturb` in a thread when so many parts of a stage are there."""

    def watch() -> None:
        wait_for(lambda: made_parts(out, stage) >= parts)
        disturb()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_is_killed_then_a_node_is_lost(
    cluster: Any, source: Path, tmp_path: Path, undisturbed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    out, killed = tmp_path / "corpus", list[int]()

    def kill_a_worker() -> None:
        assert wait_for(lambda: bool(workers_at_parts()))
        killed.append(workers_at_parts()[0])
        os.kill(killed[0], signal.SIGKILL)

    lost = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    watching = [
        disturbed(out, "cleaned", 5, kill_a_worker),
        disturbed(out, "tokens", 5, lambda: cluster.remove_node(lost, allow_graceful=False)),
    ]
    prepare(source, out, options=on(cluster))
    for thread in watching:
        thread.join()
    assert killed
    assert len([node for node in cluster.list_all_nodes() if node is lost]) == 0
    assert "is done again" in caplog.text
    assert contents(out) == undisturbed


def test_an_error_of_a_part_is_the_users_one_message(cluster: Any, tmp_path: Path) -> None:
    text = tmp_path / "latin.txt"
    text.write_bytes("Ein Satz über nichts, der lang genug ist. ".encode("latin-1") * 20)
    options = PrepareOptions(**{**SMALL_PARTS, "strict": True}, engine="ray", address=cluster.address)
    with pytest.raises(BertsmithError, match="not UTF-8"):
        prepare(text, tmp_path / "corpus", options=options)


def test_a_node_with_other_code_is_named_and_does_nothing(
    cluster: Any, source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """A node joins whose bertsmith was changed; without it, the same command ends the work."""
    shutil.copytree(Path(bertsmith.__file__).parent, tmp_path / "other" / "bertsmith")
    with open(tmp_path / "other" / "bertsmith" / "corpus" / "clean.py", "a") as file:
        file.write("# changed\n")
    odd = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path / "other")})
    cluster.wait_for_nodes()
    with pytest.raises(BertsmithError, match=r"has other versions: bertsmith .* at the driver"):
        prepare(source, tmp_path / "corpus", options=on(cluster))
    cluster.remove_node(odd, allow_graceful=False)
    prepare(source, tmp_path / "corpus", options=on(cluster))
    assert contents(tmp_path / "corpus") == undisturbed


def test_no_cluster_answers(source: Path, tmp_path: Path) -> None:
    options = PrepareOptions(**SMALL_PARTS, engine="ray", address="127.0.0.1:9")
    with pytest.raises(BertsmithError, match="no Ray cluster answers"):
        prepare(source, tmp_path / "corpus", options=options)


def test_without_the_package(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from bertsmith.cli import main\n"
        f"sys.exit(main(['prepare', {str(source)!r}, '--out', {str(tmp_path / 'c')!r}, '--engine', 'ray']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "pip install 'bertsmith[ray]'" in done.stderr
