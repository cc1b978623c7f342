"""Which rank a process is, by the variables of what started it; and who cannot join is refused, never a first rank."""

from __future__ import annotations

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks.places import LAUNCHER, Place, place, started_together

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "mine",
}
BY_HAND = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
# What srun sets for task 5 of `srun -N2 -n8`.
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "gpu[04,09]",
    "SLURM_NODELIST": "gpu[04,09-10]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}


def test_a_process_started_by_hand_is_on_its_own() -> None:
    assert place({}) is None
    assert started_together({}) == 1


def test_torchrun() -> None:
    assert place(TORCHRUN) == Place(5, 8, 1, 4, "node7", 29500, "torchrun", hosts_store=False, attempt="2", run="mine")
    assert started_together(TORCHRUN) == 8
    ours = place({**TORCHRUN, LAUNCHER: "123"})
    assert ours is not None
    assert ours.started_by == "bertsmith"


def test_variables_set_by_hand_make_the_first_rank_hold_the_store() -> None:
    by_hand = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
    first = place(by_hand)
    assert first is not None
    assert first == Place(0, 2, 0, 1, "node7", 29500, "torchrun", hosts_store=True, run=first.run)
    second = place({**by_hand, "RANK": "1"})
    assert second is not None
    assert not second.hosts_store


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_who_does_not_know_all_it_takes_to_join_is_refused(missing: str) -> None:
    variables = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(BertsmithError, match=f"cannot join the others, as it lacks {missing}"):
        place(variables)


def test_a_world_of_one_without_more_is_a_process_of_its_own() -> None:
    assert place({"WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["-1", "one", "²", " "])
def test_a_variable_that_is_no_number_is_refused(name: str, value: str) -> None:
    with pytest.raises(BertsmithError, match=f"{name} is '{value}' and should be a number"):
        place({**TORCHRUN, name: value})


@pytest.mark.parametrize(
    ("name", "value", "of", "range_"),
    [
        ("RANK", "8", TORCHRUN, "from 0 to 7"),
        ("WORLD_SIZE", "0", TORCHRUN, "from 1"),
        ("LOCAL_RANK", "4", TORCHRUN, "from 0 to 3"),
        ("LOCAL_RANK", "8", BY_HAND, "from 0 to 7"),
        ("LOCAL_WORLD_SIZE", "0", TORCHRUN, "from 1 to 8"),
        ("LOCAL_WORLD_SIZE", "9", TORCHRUN, "from 1 to 8"),
        ("MASTER_PORT", "99999", TORCHRUN, "from 1 to 65535"),
        ("MASTER_PORT", "0", TORCHRUN, "from 1 to 65535"),
        ("SLURM_PROCID", "9", SRUN, "from 0 to 7"),
        ("MASTER_PORT", "99999", SRUN, "from 1 to 65535"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(name: str, value: str, of: dict[str, str], range_: str) -> None:
    with pytest.raises(BertsmithError, match=f"{name} is '{value}' and should be a number {range_}, "):
        place({**of, name: value})


def test_rank_3_of_a_world_of_one_is_no_process_of_its_own() -> None:
    with pytest.raises(BertsmithError, match="cannot join"):
        place({"RANK": "3", "WORLD_SIZE": "1"})


def test_srun() -> None:
    found = place(SRUN)
    assert found is not None
    assert found == Place(5, 8, 1, 4, "gpu04", found.port, "srun", hosts_store=False, run="77.3")
    assert started_together(SRUN) == 8
    first = place({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert first is not None
    assert first.hosts_store
    assert first.port == found.port


def test_what_older_slurms_set_is_enough() -> None:
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODELIST")
    found = place({name: SRUN[name] for name in names})
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank, found.address) == (5, 8, 1, "gpu04")


def port_of(job: int, step: int) -> int:
    found = place({**SRUN, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
    assert found is not None
    return found.port


def test_jobs_and_steps_meet_at_ports_of_their_own() -> None:
    ports = [port_of(job, step) for job in range(100, 110) for step in range(20)]
    assert len(set(ports)) > 0.95 * len(ports)
    assert all(1024 < port < 32768 for port in ports)
    assert port_of(100, 7) != port_of(101, 0)


def run_of(environ: dict[str, str]) -> tuple[str, str]:
    found = place(environ)
    assert found is not None
    return found.run, found.attempt


def test_ranks_of_two_runs_know_that_they_are_not_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [run_of({**SRUN, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step}) for job in "78" for step in "01"]
    assert len(set(jobs)) == 4
    assert run_of(SRUN) != run_of({**SRUN, "SLURM_RESTART_COUNT": "1"})
    assert run_of(TORCHRUN) == ("mine", "2")

    def named(*flags: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["bertsmith", "pretrain", "bert-tiny", *flags])
        unnamed = run_of({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"})
        assert unnamed == run_of(BY_HAND)
        return unnamed

    assert named("--out", "a") == named("--out=a", "--device", "cuda:1") != named("--out", "b")


def test_the_user_may_say_where_srun_s_tasks_meet() -> None:
    found = place({**SRUN, "MASTER_ADDR": "login1", "MASTER_PORT": "12345"})
    assert found is not None
    assert (found.address, found.port) == ("login1", 12345)


def test_tasks_of_uneven_nodes() -> None:
    uneven = {**SRUN, "SLURM_STEP_NODELIST": "gpu[1-4]", "SLURM_STEP_TASKS_PER_NODE": "3(x2),1,2"}
    counts = [place({**uneven, "SLURM_NODEID": str(node)}) for node in range(4)]
    assert [each.local_world_size for each in counts if each is not None] == [3, 3, 1, 2]


def test_a_step_of_one_task_and_a_batch_script_are_single_processes() -> None:
    assert place({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None
    batch = {name: value for name, value in SRUN.items() if "STEP" not in name}
    batch |= {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert place(batch) is None
    assert started_together(batch) == 1


def test_torchrun_within_a_slurm_step_counts() -> None:
    found = place({**SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", **TORCHRUN})
    assert found is not None
    assert (found.rank, found.world_size, found.started_by) == (5, 8, "torchrun")


@pytest.mark.parametrize("missing", ["SLURM_LOCALID", "hosts"])
def test_a_slurm_task_that_cannot_join_is_refused(missing: str) -> None:
    lists = ("SLURM_STEP_NODELIST", "SLURM_NODELIST")
    gone = lists if missing == "hosts" else (missing,)
    with pytest.raises(BertsmithError, match=r"Slurm does not say|cannot join"):
        place({name: value for name, value in SRUN.items() if name not in gone})


@pytest.mark.parametrize("gone", [("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"), ("SLURM_PROCID",)])
def test_a_slurm_task_that_lacks_its_number_or_that_of_all_is_refused(gone: tuple[str, ...]) -> None:
    left = {name: value for name, value in SRUN.items() if name not in gone}
    with pytest.raises(BertsmithError, match=f"{gone[0]} is missing"):
        place(left)
    if "SLURM_PROCID" in left:
        with pytest.raises(BertsmithError, match=f"{gone[0]} is missing"):
            place({"SLURM_PROCID": "3"})


def test_a_task_beyond_a_step_of_one_is_refused() -> None:
    with pytest.raises(BertsmithError, match="SLURM_PROCID is '5' and should be a number from 0 to 0"):
        place({**SRUN, "SLURM_STEP_NUM_TASKS": "1"})


def test_a_batch_script_that_sets_environment_itself_is_a_single_process() -> None:
    assert place({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "ENVIRONMENT": "production"}) is None


def test_mpirun_by_pmi_is_refused_and_srun_with_pmi_is_srun() -> None:
    alone = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    with pytest.raises(BertsmithError, match="mpirun started 2 processes"):
        place(alone)
    assert started_together(alone) == 2
    with_pmi = place({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"})
    assert with_pmi == place(SRUN) is not None
    # mpirun starts a task on each node, which starts the processes there: they have one SLURM_PROCID.
    with pytest.raises(BertsmithError, match="mpirun started 16 processes"):
        place({**SRUN, "PMI_RANK": "9", "PMI_SIZE": "16"})


def test_mpirun_is_refused() -> None:
    with pytest.raises(BertsmithError, match="mpirun started 4 processes") as caught:
        place({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"})
    assert "torchrun" in caught.value.fix
    assert started_together({"OMPI_COMM_WORLD_SIZE": "4"}) == 4
    within = {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(BertsmithError, match="mpirun started 4"):
        place(within)
