"""Two hosts, as network namespaces, of which one is cut off: all ranks leave, and where torchrun is started again, as
Slurm's requeue does, the run continues to the end of the unbroken one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertsmith.training.run_folder import Run
from made_ranks import BERTSMITH, MARGIN, arguments, ended, kill_all, processes, started, wait_for_step
from made_runs import figures, small_recipe, weights

RECIPE = small_recipe(phase1__steps=1500, phase2__steps=2, save_every=20, log_every=20)
TIMEOUT = 20
PORT = 29507


@dataclass(frozen=True)
class Host:
    """A namespace with a name and an address of its own, and its end of the cable."""

    space: str
    name: str
    cable: str
    address: str

    def command(self, text: str) -> list[str]:
        """Runs a shell command there."""
        inner = f"hostname {self.name}; exec bash -c {shlex.quote(text)}"
        return ["ip", "netns", "exec", self.space, "unshare", "--uts", "bash", "-c", inner]

    def cable_is(self, state: str) -> None:
        """Plugs the cable in ("up"), or pulls it ("down")."""
        subprocess.run(["ip", "-n", self.space, "link", "set", self.cable, state], check=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """Two hosts that a cable joins; skips where this process may not make them."""
    if sys.platform != "linux" or not all(map(shutil.which, ("ip", "unshare"))):
        pytest.skip("needs Linux with ip and unshare")
    mark = f"{os.getpid() % 100_000}"
    pair = tuple(Host(f"bs{mark}{each}", f"node-{each}", f"v{mark}{each}", f"10.77.0.{end}") for end, each in
                 enumerate("ab", 1))  # fmt: skip
    first, second = pair
    steps = [
        *(f"ip netns add {each.space}" for each in pair),
        f"ip -n {first.space} link add {first.cable} type veth peer name {second.cable} netns {second.space}",
        *(f"ip -n {each.space} addr add {each.address}/24 dev {each.cable}" for each in pair),
        *(f"ip -n {each.space} link set {device} up" for each in pair for device in ("lo", each.cable)),
        f"ip netns exec {first.space} unshare --uts true",
    ]
    try:
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {step}: {done.stderr.strip()}")
        yield first, second
    finally:
        kill_all(*processes(MARK=str(tmp_path)))
        for each in pair:
            subprocess.run(["ip", "netns", "del", each.space], capture_output=True, check=False)


def loop(host: Host, node: int, address: str, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Starts torchrun on a host, again and again until it ends well; its log is named after the host."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--node-rank", str(node), "--master-addr", address, "--master-port", str(PORT), "-m", "bertsmith"]
    call = arguments(RECIPE, tmp_path, "--rank-timeout", str(TIMEOUT), "--resume")
    text = f"for n in 1 2 3 4 5 6; do {shlex.join([*torchrun, *call])} && exit 0; sleep 1; done; exit 1"
    return started(host.command(text), tmp_path / host.name, MARK=str(tmp_path), GLOO_SOCKET_IFNAME=host.cable)


def wait_for(log: Path, words: str, end: float) -> None:
    """Returns once a log holds these words, which it must at this time."""
    while words not in (said := log.read_text(errors="replace")):
        assert time.monotonic() < end, f"not said {TIMEOUT + MARGIN:.0f} s after the host was cut off: {words}\n{said}"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_host_that_is_cut_off_ends_all_and_the_run_goes_on(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    first, second = hosts
    loops = [loop(host, node, first.address, tmp_path) for node, host in enumerate(hosts)]
    wait_for_step(tmp_path / "run", 40, loops[0])
    second.cable_is("down")
    end = time.monotonic() + TIMEOUT + MARGIN
    lost = f"rank 1: rank 0 on node-a with the store of the ranks, {first.address}:{PORT}, has "
    wait_for(tmp_path / "node-a", "rank 1 on node-b was not heard from for ", end)
    wait_for(tmp_path / "node-b", lost, end)
    ranks = [*processes(MARK=str(tmp_path), RANK="0"), *processes(MARK=str(tmp_path), RANK="1")]
    while any(Path(f"/proc/{rank}").exists() for rank in ranks) and time.monotonic() < end:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks), "all leave while the host is still cut off"
    second.cable_is("up")
    assert [ended(each) for each in loops] == [0, 0], [(tmp_path / host.name).read_text() for host in hosts]
    unbroken = started([*BERTSMITH, *arguments(RECIPE, tmp_path / "b", "--ranks", "2")], tmp_path / "log")
    assert ended(unbroken) == 0
    assert figures(Run(tmp_path / "run")) == figures(Run(tmp_path / "b" / "run"))
    assert weights(Run(tmp_path / "run")) == weights(Run(tmp_path / "b" / "run"))
