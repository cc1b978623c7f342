"""The files for clusters are well formed, and the commands in them have flags that there are."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertsmith.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPTS = sorted((DOCS / "slurm").glob("*.sbatch"))
MANIFESTS = sorted((DOCS / "kubernetes").glob("*.yaml"))


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
