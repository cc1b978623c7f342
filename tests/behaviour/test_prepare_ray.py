"""Promise: on a Ray cluster of several nodes the bytes are those of one machine, whatever dies on the way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from made_commands import Command
from made_corpora import OPTIONS, contents, made_parts, start, start_command, wait_for
from made_dumps import seconds_of_slow_page, slow_dump

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
pytest.importorskip("ray", reason="ray is not installed: pip install 'bertsmith[ray]'")

from ray.cluster_utils import Cluster

SMALL_PARTS = {**OPTIONS, "part_bytes": 4_000}


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed") / "corpus"
    prepare(source, out, options=PrepareOptions(**SMALL_PARTS, workers=1))
    return contents(out)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with one core for parts; tests add a node of one core and take it away."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.wait_for_nodes()
    yield made
    made.shutdown()


def begin(cluster: Any, source: Path, out: Path, **changes: Any) -> Command:
    """A driver in a process of its own, which may reach the cluster at this machine's address."""
    options = {**SMALL_PARTS, "workers": None, "engine": "ray", "address": cluster.address, **changes}
    return start(source, out, **options)


def end(process: Command) -> str:
    """What it said; the status must be that of success."""
    said = process.communicate()[1]
    assert process.wait() == 0, said
    return said


def kill_a_worker(cluster: Any) -> bool:
    """Kills one of the cluster's worker processes that do a part of ours at this moment; False where none does."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if not path.read_bytes().startswith(b"ray::_on_node"):
                continue
            node = re.search(r"PPid:\t(\d+)", path.with_name("status").read_text())
            assert node is not None
            if f"={cluster.address}" in Path(f"/proc/{node[1]}/cmdline").read_text():
                os.kill(int(path.parent.name), signal.SIGKILL)
                return True
        except OSError:
            continue
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_a_worker_is_killed_then_a_node_is_lost(
    cluster: Any, source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "corpus"
    lost = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    driver = begin(cluster, source, out)
    assert wait_for(lambda: made_parts(out, "cleaned") >= 3 and kill_a_worker(cluster), driver)
    assert wait_for(lambda: made_parts(out, "tokens") >= 3, driver)
    cluster.remove_node(lost, allow_graceful=False)
    said = end(driver)
    assert "is done again" in said
    assert contents(out) == undisturbed


def test_an_error_of_a_part_is_the_users_one_message(cluster: Any, tmp_path: Path) -> None:
    text = tmp_path / "latin.txt"
    text.write_bytes("Ein Satz über nichts, der lang genug ist. ".encode("latin-1") * 20)
    said = begin(cluster, text, tmp_path / "corpus", strict=True).communicate()[1]
    assert "BertsmithError: this is not UTF-8 text" in said
    assert "latin.txt, byte 9" in said


def test_a_page_that_takes_too_long_is_given_up_as_on_one_machine(cluster: Any, tmp_path: Path) -> None:
    dump, changes = slow_dump(tmp_path / "wiki.xml"), {"documents": "file", "part_bytes": 60_000}
    changes["page_seconds"] = seconds_of_slow_page() / 100
    asked = PrepareOptions(**{**OPTIONS, **changes}, workers=1)
    given_up = prepare(dump, tmp_path / "given_up", options=asked)
    assert len(given_up.account["given_up"]["pages"]) == 1
    end(begin(cluster, dump, tmp_path / "corpus", **changes))
    assert contents(tmp_path / "corpus") == contents(given_up.folder)


@pytest.mark.slow
def test_a_node_with_other_code_is_named_and_does_nothing(
    cluster: Any, source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """A node joins whose bertsmith was changed; without it, the same command ends the work."""
    shutil.copytree(Path(bertsmith.__file__).parent, tmp_path / "other" / "bertsmith")
    with open(tmp_path / "other" / "bertsmith" / "corpus" / "clean.py", "a") as file:
        file.write("# changed\n")
    odd = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path / "other")})
    cluster.wait_for_nodes()
    said = begin(cluster, source, tmp_path / "corpus").communicate()[1]
    assert re.search(r"BertsmithError: the node \S+ has other versions: bertsmith .* at the driver", said), said
    cluster.remove_node(odd, allow_graceful=True)
    end(begin(cluster, source, tmp_path / "corpus"))
    assert contents(tmp_path / "corpus") == undisturbed


def test_no_cluster_answers(source: Path, tmp_path: Path) -> None:
    options = PrepareOptions(**SMALL_PARTS, engine="ray", address="127.0.0.1:9")
    with pytest.raises(BertsmithError, match="no Ray cluster answers"):
        prepare(source, tmp_path / "corpus", options=options)


def test_without_the_package(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["prepare", str(source), "--out", str(tmp_path / "c"), "--engine", "ray"]) == 2
    assert "pip install 'bertsmith[ray]'" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="waits for parts of a cluster")
def test_sigterm_is_not_answered_with_a_stack_trace_of_rays(cluster: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    flags = ("--part-bytes", "4000", "--engine", "ray", "--address", cluster.address)
    with start_command(source, out, *flags) as process:
        assert wait_for(lambda: made_parts(out, "cleaned") >= 1, process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
        assert process.wait() == 143, said
    assert said.endswith("stopped; finished parts are kept, and the same command continues from them\n")
