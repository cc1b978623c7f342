"""Promise: ranks that differ in settings, data, position, weights or code are refused before the first step, by name.

One group of three ranks goes through all the faults, one after another; each rank writes down what it was given.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import bertsmith
from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks.together import together
from bertsmith.corpus.shards import Corpus
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.training import agreement, checkpoints, run, run_folder
from bertsmith.training.checkpoints import Position
from bertsmith.training.pretrain import Run, pretrain
from made_rows import QUICK, made_model, rows
from made_runs import ran, small_corpus, small_recipe

RANKS = 3
RECIPE = small_recipe(save_every=2, keep=20)
TRAIN, DEV = rows(32, 1), rows(20, 2)


class Rank:
    """One of the three, at work. told: by the name of a fault, what this rank was told, or what came of it."""

    def __init__(self, number: int, folder: Path, made: Path) -> None:
        self.number, self.folder, self.made = number, folder, made
        self.told: dict[str, Any] = {}

    def trains(self, name: str, corpus: Path | None = None, resume: bool = False, **fields: Any) -> None:
        """Pre-trains as rank `number` sees it, into a folder that should not be there afterwards."""
        out = self.folder / ("run" if resume else f"refused-{name}")
        self.takes(name, lambda: pretrain(replace(RECIPE, **fields), corpus or self.made, out, resume=resume))

    def takes(self, name: str, work: Callable[[], object]) -> None:
        try:
            self.told[name] = repr(work())
        except BertsmithError as error:
            self.told[name] = [error.what, error.where, error.fix]
        except TypeError as error:
            self.told[name] = f"its own error: {error}"

    def copy_of_corpus(self, name: str) -> Path:
        """A copy for the last rank alone, as a host with a disk of its own has it."""
        if self.number != 2:
            return self.made
        return Path(shutil.copytree(self.made, self.folder / f"corpus-{name}", dirs_exist_ok=True))


def differing_settings(rank: Rank) -> None:
    rank.trains("seed", seed=42 + (rank.number == 1), log_every=1 + (rank.number > 0))
    rank.trains("loader", loader_workers=rank.number % 2, phase1=replace(RECIPE.phase1, steps=1))
    rank.trains("resume", resume=rank.number == 1)


def differing_corpora(rank: Rank) -> None:
    missing = rank.copy_of_corpus("missing")
    cut = rank.copy_of_corpus("cut")
    other = rank.copy_of_corpus("other")
    if rank.number == 2:
        next((missing / "train").glob("*.tokens.npy")).unlink()
        victim = next((cut / "train").glob("*.tokens.npy"))
        victim.write_bytes(victim.read_bytes()[:-100])
        account = json.loads((other / "corpus.json").read_text(encoding="utf-8"))
        (other / "corpus.json").write_text(json.dumps(account), encoding="utf-8")
    for name, path in (("missing shard", missing), ("cut shard", cut), ("other corpus", other)):
        rank.trains(name, path)
    rank.trains("no corpus", rank.folder / "nothing-there")


def differing_weights(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    from bertsmith.training import work as root

    initialise = root.initialise

    def off_by_a_bit(model: torch.nn.Module, *rest: Any) -> None:
        initialise(model, *rest)
        if rank.number == 1:
            weight = next(model.parameters())
            weight.data.view(torch.int32).view(-1)[7] ^= 1

    with patch.context() as inner:
        inner.setattr(root, "initialise", off_by_a_bit)
        rank.trains("a bit of a weight")


def differing_code(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    changed = rank.folder / f"package-{rank.number}"
    shutil.copytree(agreement._PACKAGE, changed, ignore=shutil.ignore_patterns("__pycache__"))
    with patch.context() as inner:
        inner.setattr(agreement, "_PACKAGE", changed)
        rank.trains("copied code", phase1=replace(RECIPE.phase1, steps=1))
        if rank.number > 0:
            (changed / "optim" / "lamb.py").write_text("# another one\n", encoding="utf-8")
        rank.trains("other code")
        inner.setattr(torch, "__version__", f"{torch.__version__}{'-other' * (rank.number == 2)}")
        rank.trains("other code and torch")


def old_listings(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    """Ranks 1 and 2 see the run folder as it was before its last checkpoint, and before its first one."""
    out = rank.folder / "run"
    pretrain(RECIPE, rank.made, out)
    if rank.number == 0:
        shutil.rmtree(out / "model")
        checkpoint = out / "step-00000007"
        shutil.copytree(out, rank.folder / "unlike")
        shutil.copytree(out / "step-00000004", rank.folder / "unlike" / checkpoint.name, dirs_exist_ok=True)
    together(lambda: None)
    folders = checkpoints.step_folders
    with patch.context() as inner:
        for module in (checkpoints, checkpoints.load, checkpoints.folders, checkpoints.saver, run_folder):
            inner.setattr(module, "step_folders", lambda run: folders(run)[: (None, 1, 0)[rank.number]])
        rank.trains("old listing", resume=True)
    load = run.load_checkpoint

    for name, other in (("other checkpoint", "unlike"), ("no checkpoint", "gone")):

        def loading(folder: Path, *rest: Any, other: str = other) -> Any:
            return load(rank.folder / other / folder.name if rank.number == 1 else folder, *rest)

        if rank.number == 0:
            shutil.rmtree(out / "model", ignore_errors=True)
        together(lambda: None)
        with patch.context() as inner:
            inner.setattr(run, "load_checkpoint", loading)
            rank.trains(name, resume=True)


def failures(rank: Rank) -> None:
    def fail(*numbers: int, error: type[Exception] = BertsmithError, alike: bool = True) -> Callable[[], int]:
        def work() -> int:
            if rank.number in numbers:
                raise error("no disk" if alike else f"no disk of {rank.number}")
            return rank.number

        return work

    rank.takes("nothing fails", lambda: together(fail()))
    rank.takes("one fails", lambda: together(fail(1)))
    rank.takes("two fail", lambda: together(fail(0, 2)))
    rank.takes("two fail in two ways", lambda: together(fail(0, 2, alike=False)))
    rank.takes("all fail", lambda: together(fail(0, 1, 2)))
    rank.takes("a bug", lambda: together(fail(1, error=TypeError)))


def sharded(rank: Rank) -> None:
    """Weights of which each rank holds other rows, as read from equal files, and from files of which one differs."""
    mesh = init_device_mesh("cpu", (RANKS,))
    model = torch.nn.Linear(4, 6, bias=False)
    model.weight = torch.nn.Parameter(distribute_tensor(torch.arange(24.0).view(6, 4), mesh, [Shard(0)]))
    optimizer = AdamW(parameter_groups(model, 0.0))
    for name, text in (("equal", "as written"), ("unlike", f"as rank {rank.number % 2} reads it")):
        step = rank.folder / f"{name}-of-{rank.number}" / "step-00000001"
        step.mkdir(parents=True)
        (step / "training-state.safetensors").write_text(text, encoding="utf-8")
        facts = agreement.held(Position(step=1), model, optimizer, step)
        rank.takes(f"sharded, {name} files", lambda facts=facts: agreement.agree(lambda: facts))


def differing_rows(rank: Rank) -> None:
    settings = replace(QUICK, epochs=1)
    model = rank.folder / "model"
    train = TRAIN[:-1] if rank.number == 2 else TRAIN
    rank.takes("rows", lambda: bertsmith.finetune("classify", model, train, DEV, rank.folder / "no", settings=settings))


def work_of_a_rank(folder: Path, made: Path) -> None:
    one = Rank(ranks.rank(), folder, made)
    with pytest.MonkeyPatch.context() as patch:
        differing_settings(one)
        differing_corpora(one)
        differing_weights(one, patch)
        differing_code(one, patch)
        old_listings(one, patch)
        failures(one)
        sharded(one)
        differing_rows(one)
    (folder / f"told-{one.number}.json").write_text(json.dumps(one.told), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    made_model(folder)
    ran(work_of_a_rank, RANKS, folder, small_corpus())
    return folder


def told(folder: Path, name: str) -> Any:
    """What the ranks were told, all the same."""
    first, *others = (
        json.loads((folder / f"told-{rank}.json").read_text(encoding="utf-8"))[name] for rank in range(RANKS)
    )
    assert all(each == first for each in others), "all ranks are told the same"
    return first


def test_settings_that_differ_are_named_with_their_values(folder: Path) -> None:
    what, where, fix = told(folder, "seed")
    assert "rank 1 in recipe.log_every (2, not 1), recipe.seed (43, not 42)" in what
    assert "rank 2 in recipe.log_every (2, not 1)" in what
    assert where.startswith("rank 0 on ")
    assert "rank 2 on " in where
    assert "same recipe and flags" in fix
    assert "resume (True, not False)" in told(folder, "resume")[0]
    assert "Run(" in told(folder, "loader"), "what each rank may have its own way is not compared"


def test_a_refused_run_leaves_no_folder(folder: Path) -> None:
    assert {each.name for each in folder.glob("refused-*")} == {"refused-loader", "refused-copied code"}


@pytest.mark.parametrize(
    ("fault", "said"), [("missing shard", "a shard file is missing"), ("cut shard", "this file is damaged")]
)
def test_a_damaged_copy_of_the_corpus_is_named_with_its_rank(folder: Path, fault: str, said: str) -> None:
    what, where, fix = told(folder, fault)
    assert what.startswith("rank 2 failed: ")
    assert said in what
    assert ".tokens.npy" in where
    assert "copy it again" in fix


def test_another_corpus_is_named_with_its_rank(folder: Path) -> None:
    what, _, fix = told(folder, "other corpus")
    assert what.endswith("rank 2 in corpus")
    assert "bertsmith verify" in fix
    assert told(folder, "no corpus")[0] == "there is no corpus here", "the same mistake on all ranks is told as of one"


def test_one_bit_of_a_weight_is_enough(folder: Path) -> None:
    assert told(folder, "a bit of a weight")[0].endswith("rank 1 in weights")


def test_other_code_is_named(folder: Path) -> None:
    assert "Run(" in told(folder, "copied code"), "it is the text that counts, wherever it is"
    what, _, fix = told(folder, "other code")
    assert what.endswith("ranks 1, 2 in code")
    assert "same version of Bertsmith" in fix
    what, _, fix = told(folder, "other code and torch")
    assert "rank 1 in code" in what
    assert "rank 2 in code, torch" in what
    assert "same version of torch" in fix


def test_the_first_rank_names_the_checkpoint_whatever_the_others_list(folder: Path) -> None:
    assert told(folder, "old listing").startswith("Run(")
    assert [each["step"] for each in Run(folder / "run").metrics("train")] == list(range(1, 8))


def test_a_rank_that_reads_another_checkpoint_or_none_is_named(folder: Path) -> None:
    what, _, fix = told(folder, "other checkpoint")
    assert "rank 1 in position." in what
    assert "position.stage (1, not 2)" in what
    assert "position.step (4, not 7)" in what
    assert "weights" in what
    assert "one disk that every host sees" in fix
    assert told(folder, "no checkpoint")[0].startswith("rank 1 failed: ")


def test_of_sharded_weights_the_files_are_compared(folder: Path) -> None:
    assert told(folder, "sharded, equal files") == "None"
    assert told(folder, "sharded, unlike files")[0].endswith("rank 1 in weights")


def test_rows_of_fine_tuning_are_compared_too(folder: Path) -> None:
    assert told(folder, "rows")[0].endswith("rank 2 in train_rows")
    assert not (folder / "no").exists()


def test_what_fails_on_some_ranks_fails_on_all(folder: Path) -> None:
    said = [json.loads((folder / f"told-{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]
    assert [each["nothing fails"] for each in said] == ["0", "1", "2"]
    assert told(folder, "one fails")[0] == "rank 1 failed: no disk"
    assert told(folder, "two fail")[0] == "ranks 0, 2 failed: no disk"
    assert told(folder, "two fail in two ways")[0] == (
        "rank 0 failed: no disk of 0; rank 2 failed too, with other errors"
    )
    assert told(folder, "all fail")[0] == "no disk"
    bugs = [each["a bug"] for each in said]
    assert bugs[1] == "its own error: no disk"
    assert bugs[0] == bugs[2]
    assert bugs[0][0] == "rank 1 failed: TypeError: no disk"


def test_one_process_compares_nothing() -> None:
    agreement.agree(lambda: pytest.fail("nothing is to be compared"))


def test_a_corpus_of_other_sizes_than_listed_is_refused_in_one_process(tmp_path: Path) -> None:
    shutil.copytree(small_corpus(), tmp_path / "corpus")
    victim = next((tmp_path / "corpus" / "train").glob("*.documents.npy"))
    victim.write_bytes(victim.read_bytes()[:-4])
    with pytest.raises(BertsmithError, match="damaged"):
        pretrain(RECIPE, Corpus.open(tmp_path / "corpus"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
