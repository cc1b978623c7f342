"""The files for clusters are well formed, and the commands in them have flags that there are."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertsmith.cli import main
from bertsmith.training.run_folder import Run
from made_ranks import BERTSMITH, arguments, ended, environment, started, wait_for_step
from made_runs import figures, small_corpus, small_recipe, weights

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPTS = sorted((DOCS / "slurm").glob("*.sbatch"))
MANIFESTS = sorted((DOCS / "kubernetes").glob("*.yaml"))
# What a reader of the manifest of pre-training puts their own values for.
WRITTEN = {
    "run": "/data/run",
    "corpus": "/data/corpus",
    "recipe": "bert-large-nvlamb",
    "nodes": "--nnodes 4",
    "ranks": "--nproc-per-node 8",
    "first": "bertsmith-pretrain-0.bertsmith-pretrain",
    "port": "29500",
}


def texts(value: Any) -> Iterator[str]:
    """Every text in a manifest."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


def commands(path: Path) -> list[str]:
    """The bertsmith commands of a script or a manifest, comments and line ends that are escaped left out."""
    if path.suffix == ".yaml":
        found = list(texts(list(yaml.safe_load_all(path.read_text()))))
    else:
        found = re.sub(r"^#.*$", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found = [text.partition("--resume &")[0] for text in found]
    return [text[match.start() :] for text in found if (match := re.search(r"bertsmith (prepare|pretrain) ", text))]


@pytest.mark.parametrize("path", [*SCRIPTS, *MANIFESTS], ids=lambda path: path.name)
def test_every_flag_is_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = commands(path)
    verb = command.split()[1]
    main([verb, "--help"])
    known = capsys.readouterr().out
    flags = [token for token in shlex.split(command) if token.startswith("--")]
    assert flags
    assert all(re.search(rf"{flag}\b", known) for flag in flags), flags
    page = {"prepare": "clusters.md", "pretrain": "many-devices.md"}[verb]
    assert f"`docs/{path.parent.name}/{path.name}`" in (DOCS / page).read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash_and_ask_for_slurm(path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    alone = subprocess.run(["bash", str(path)], capture_output=True, text=True, env={}, check=False)
    assert alone.returncode != 0
    assert "sbatch" in alone.stderr


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_pod_mounts_the_volume_it_works_in(path: Path) -> None:
    pods = []

    def collect(value: Any) -> None:
        if isinstance(value, dict) and "containers" in value:
            pods.append(value)
        if isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                collect(each)

    collect(list(yaml.safe_load_all(path.read_text())))
    assert pods
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert mounts["data"] == "/data"
        assert volumes == set(mounts)


def pod(tmp_path: Path, torchrun: str, index: int = 1, before: str = "", **instead: str) -> subprocess.Popen[bytes]:
    """The container of the manifest of pre-training, with a run folder in tmp_path, and another torchrun. before: run
    ahead of the container's commands. instead: what stands for each of `WRITTEN`."""
    (_, job) = yaml.safe_load_all((DOCS / "kubernetes" / "pretrain.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (text,) = container["args"]
    assert container["command"] == ["bash", "-c"]
    for name, value in {"run": str(tmp_path / "run"), **instead}.items():
        assert WRITTEN[name] in text
        text = text.replace(WRITTEN[name], value)
    (tmp_path / "torchrun").write_text(f"#!/bin/bash\ncd {tmp_path}\n{torchrun}\n")
    (tmp_path / "torchrun").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": str(index)}
    return subprocess.Popen(["bash", "-c", before + text], env=environment(**path))


@pytest.mark.parametrize(
    ("torchrun", "status"),
    [
        ("exit 0", 0),
        ("touch run/stopped; exit 0", 75),
        ("exit 1", 1),
        ("touch run/stopped; exit 1", 1),
    ],
)
def test_a_pod_of_a_stopped_run_starts_again_and_that_of_a_finished_one_does_not(
    torchrun: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    assert pod(tmp_path, torchrun).wait(60) == status


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_the_signal_to_a_pod_reaches_torchrun_which_may_save(tmp_path: Path) -> None:
    """The signal comes while the container has not gone on to its next command."""
    stop = "trap 'sleep 0.5; touch run/stopped saved; exit 0' TERM; kill -TERM $PPID; touch signalled; "
    held = f"""trap 'until [ -z "$!" ] || [ -e "{tmp_path}/signalled" ]; do sleep 0.02; done' DEBUG\n"""
    (tmp_path / "run").mkdir()
    assert pod(tmp_path, stop + "while :; do sleep 0.1; done", before=held).wait(60) == 75
    assert (tmp_path / "saved").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)  # three runs of two ranks
@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_a_pod_that_is_drained_and_started_again_has_the_figures_of_ranks(tmp_path: Path) -> None:
    """One node of two processes on a CPU; the real torchrun, and all of the manifest's command."""
    recipe = small_recipe(phase1__steps=60, phase1__global_batch=16, phase2__steps=2, save_every=100_000)
    whole, run = tmp_path / "whole", tmp_path / "run"
    call = [*BERTSMITH, *arguments(recipe, whole, "--ranks", "2")]
    assert ended(started(call, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    torchrun = f'exec {sys.executable} -m torch.distributed.run "$@"'
    here = {"recipe": str(whole / "recipe.yaml"), "corpus": str(small_corpus()), "nodes": "--nnodes 1"}
    here |= {"ranks": "--nproc-per-node 2", "first": "127.0.0.1", "port": port}
    first = pod(tmp_path, torchrun, index=0, **here)
    wait_for_step(run, 3, first)
    first.send_signal(signal.SIGTERM)
    assert ended(first) == 1, "so that Kubernetes starts the pod again"
    assert (run / "stopped").exists()
    assert ended(pod(tmp_path, torchrun, index=0, **here)) == 0
    assert not (run / "stopped").exists()
    assert figures(Run(run)) == figures(Run(whole / "run"))
    assert weights(Run(run)) == weights(Run(whole / "run"))
