"""GLUE's submission and its mean."""

import math
import zipfile

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.benchmarks.benchmark import benchmarks
from bertsmith.tasks.benchmarks.glue import GLUE_TASKS, Predictions, add_to_submission, glue_score

# What the server takes: https://gluebenchmark.com/faq.
SERVER = {
    "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv",
    "WNLI.tsv", "AX.tsv",
}  # fmt: skip


def predictions(*answers):
    return Predictions([str(place) for place in range(len(answers))], list(answers))


def read(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_submission_grows_to_all_files_of_the_server(tmp_path):
    path, missing = tmp_path / "submission.zip", []
    for each in benchmarks().values():
        if each.submission:
            answer = each.labels[-1] if each.labels else 2.5
            missing = add_to_submission(path, each, {part: predictions(answer) for part in each.submission})
    assert missing == []
    found = read(path)
    assert set(found) == SERVER
    assert found["RTE.tsv"] == "index\tprediction\n0\tnot_entailment\n"
    assert found["AX.tsv"] == found["MNLI-m.tsv"] == found["MNLI-mm.tsv"] == "index\tprediction\n0\tneutral\n"
    assert found["CoLA.tsv"] == "index\tprediction\n0\t1\n"


def test_a_second_task_leaves_the_first_and_says_what_lacks(tmp_path):
    path = tmp_path / "all.zip"
    add_to_submission(path, benchmarks()["rte"], {"test": predictions("entailment", "not_entailment")})
    missing = add_to_submission(path, benchmarks()["mrpc"], {"test": predictions("0")})
    assert set(missing) == SERVER - {"RTE.tsv", "MRPC.tsv"}
    add_to_submission(path, benchmarks()["mrpc"], {"test": predictions("1", "1")})
    assert read(path) == {
        "MRPC.tsv": "index\tprediction\n0\t1\n1\t1\n",
        "RTE.tsv": "index\tprediction\n0\tentailment\n1\tnot_entailment\n",
    }
    first = path.read_bytes()
    add_to_submission(path, benchmarks()["mrpc"], {"test": predictions("1", "1")})
    assert path.read_bytes() == first


def test_numbers_lie_within_the_servers_range(tmp_path):
    add_to_submission(tmp_path / "a.zip", benchmarks()["stsb"], {"test": predictions(-0.3, 2.123456, 5.4)})
    assert read(tmp_path / "a.zip")["STS-B.tsv"] == "index\tprediction\n0\t0.00000\n1\t2.12346\n2\t5.00000\n"


def test_too_few_rows_are_warned_of(tmp_path, said):
    add_to_submission(tmp_path / "a.zip", benchmarks()["wnli"], {"test": predictions("0")})
    assert "the server wants 146 predictions for test, and these are 1" in said.text


def test_what_the_server_would_refuse_is_refused(tmp_path):
    with pytest.raises(BertsmithError, match="'0', which is not a class of ax") as caught:
        add_to_submission(tmp_path / "a.zip", benchmarks()["ax"], {"test": predictions("0")})
    assert "a model of mnli" in caught.value.fix
    with pytest.raises(BertsmithError, match="swag is not a task of GLUE"):
        add_to_submission(tmp_path / "a.zip", benchmarks()["swag"], {})
    with pytest.raises(BertsmithError, match=r"'\.tsv' is not a zip"):
        add_to_submission(tmp_path / "a.tsv", benchmarks()["rte"], {"test": predictions("entailment")})
    add_to_submission(tmp_path / "c.zip", benchmarks()["rte"], {"test": predictions(*["entailment"] * 40)})
    whole = (tmp_path / "c.zip").read_bytes()
    place, directory = whole.index(b"RTE.tsv") + len("RTE.tsv"), whole.index(b"PK\x01\x02")
    damaged = whole[:place] + b"\xff" * 9 + whole[place + 9 :]
    locked = whole[:6] + b"\x01" + whole[7 : directory + 8] + b"\x01" + whole[directory + 9 :]
    elsewhere = bytearray(whole)
    elsewhere[whole.index(b"PK\x05\x06") + 12 + 3] = 1  # the directory would be 16 MB long
    with zipfile.ZipFile(tmp_path / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("RTE.tsv", "entailment\n" * 40)
    packed = bytearray((tmp_path / "lzma.zip").read_bytes())
    packed[packed.index(b"RTE.tsv") + len("RTE.tsv") + 12] ^= 0xFF
    for data in (b"not a zip", damaged, locked, bytes(elsewhere), bytes(packed)):
        (tmp_path / "b.zip").write_bytes(data)
        with pytest.raises(BertsmithError, match="not a zip of predictions"):
            add_to_submission(tmp_path / "b.zip", benchmarks()["rte"], {"test": predictions("entailment")})
        assert (tmp_path / "b.zip").read_bytes() == data


def test_the_score_is_the_mean_over_tasks_with_pairs_averaged_first():
    """BERT-large's row of the leaderboard (Devlin and others, 2019): 80.5 over the nine tasks with WNLI at 65.1."""
    figures = {
        "cola": {"matthews": 0.605},
        "sst2": {"accuracy": 0.949},
        "mrpc": {"binary_f1": 0.893, "accuracy": 0.854},
        "stsb": {"pearson": 0.876, "spearman": 0.865},
        "qqp": {"binary_f1": 0.721, "accuracy": 0.893},
        "mnli": {"accuracy": 0.867, "mismatched_accuracy": 0.859},
        "qnli": {"accuracy": 0.927},
        "rte": {"accuracy": 0.701},
        "wnli": {"accuracy": 0.651},
    }
    score = glue_score(figures)
    assert score.missing == ()
    assert set(score.tasks) == set(GLUE_TASKS)
    assert score.tasks["mrpc"] == pytest.approx((0.893 + 0.854) / 2)
    assert 100 * score.mean == pytest.approx(80.5, abs=0.05)
    del figures["rte"], figures["mnli"]["mismatched_accuracy"]
    score = glue_score(figures)
    assert score.missing == ("mnli mismatched_accuracy", "rte")
    assert set(score.tasks) == set(GLUE_TASKS) - {"mnli", "rte"}
    assert math.isnan(glue_score({}).mean)
