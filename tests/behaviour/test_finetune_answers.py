"""Fine-tuning on questions, end to end: what comes out answers them, here and in transformers, and is scored as SQuAD's
official scripts would score it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertsmith import Predictor
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.evaluate import evaluate, evaluate_predictions
from bertsmith.inference.interactive import converse
from bertsmith.tasks.answering.figures import keys_of
from bertsmith.tasks.finetune import finetune
from bertsmith.tasks.kinds.choice import Choice
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.qa import Qa
from bertsmith.tasks.kinds.score import Score
from bertsmith.tasks.kinds.tag import Tag
from bertsmith.tasks.reading.records import Columns, read_records
from bertsmith.tasks.scoring.squad import scores_1_1, scores_2_0
from made_questions import QUICK, questions, squad

LAYERS = 1


@pytest.fixture(scope="module")
def answered(model, tmp_path_factory):
    """A run on SQuAD's JSON in which every question has an answer, and its dev rows."""
    folder = tmp_path_factory.mktemp("answered")
    rows = questions(60, 2)
    (folder / "train.json").write_text(json.dumps(squad(questions(240, 1))))
    (folder / "dev.json").write_text(json.dumps(squad(rows)))
    result = finetune("qa", model, folder / "train.json", folder / "dev.json", folder / "run", settings=QUICK)
    return result, rows, folder


@pytest.fixture(scope="module")
def doubtful(model, tmp_path_factory):
    """A run in which some questions have no answer, and its dev rows."""
    folder = tmp_path_factory.mktemp("doubtful")
    rows = questions(60, 4, unanswerable=0.4)
    result = finetune("qa", model, questions(240, 3, 0.4), rows, folder / "run", settings=QUICK)
    return result, rows


def golds(rows):
    return [(row["id"], [answer["text"] for answer in row["answers"]]) for row in rows]


def written(result, name):
    return json.loads((result.folder / "report" / "dev" / name).read_text())


def test_the_answers_are_found_and_scored_as_evaluate_1_1_does(answered):
    result, rows, _ = answered
    predictions = written(result, "predictions.json")
    figures = scores_1_1(golds(rows), predictions)
    assert result.tuned["dev"] == pytest.approx(figures)
    assert figures["f1"] > 90
    best = written(result, "nbest_predictions.json")
    assert list(predictions) == list(best) == [row["id"] for row in rows]
    for name, text in predictions.items():
        assert best[name][0]["text"] == text
        assert set(best[name][0]) == {"text", "probability", "start_logit", "end_logit"}
        assert 1 <= len(best[name]) <= 20
        assert sum(each["probability"] for each in best[name]) == pytest.approx(1)
    assert not (result.folder / "report" / "dev" / "null_odds.json").exists()
    assert (result.metric, result.baseline) == ("f1", 0.0)


def test_transformers_reads_the_folder_and_gives_the_same_logits(answered):
    transformers = pytest.importorskip("transformers")
    result, rows, _ = answered
    theirs, report = transformers.AutoModelForQuestionAnswering.from_pretrained(result.model, output_loading_info=True)
    assert type(theirs).__name__ == "BertForQuestionAnswering"
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    predictor = Predictor(result.model, "cpu", precision="fp32")
    examples = predictor.examples(rows[:8])
    scores = predictor._runner.scores(predictor.model, examples.sequences, per_token=True)
    ends = np.cumsum(examples.sequences.lengths)
    kinds = [
        np.arange(len(each)) >= first
        for each, first in zip(examples.sequences.ids, examples.sequences.first_segments, strict=True)
    ]
    for ids, kind, ours in zip(examples.sequences.ids, kinds, np.split(scores, ends[:-1]), strict=True):
        with torch.no_grad():
            given = {"input_ids": torch.tensor(ids)[None], "token_type_ids": torch.tensor(kind)[None].long()}
            found = theirs.eval()(**given)
        expected = torch.stack((found.start_logits[0], found.end_logits[0]), dim=1).numpy()
        np.testing.assert_allclose(ours, expected, atol=2e-5)


def test_a_question_is_answered_with_its_place_and_the_next_best(answered, capsys):
    result, rows, folder = answered
    row = rows[0]
    flags = ["--question", row["question"], "--context", row["context"], "--n-best", "3", "--device", "cpu"]
    assert main(["predict", str(folder / "run"), *flags]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["answer"] == row["context"][answer["start"] : answer["end"]] == row["answers"][0]["text"]
    assert answer["start"] == row["answers"][0]["answer_start"]
    assert len(answer["nbest"]) == 3
    assert answer["score"] == answer["nbest"][0]["probability"] > answer["nbest"][1]["probability"]
    assert Predictor(result.model, "cpu", top=3)([row]) == [answer]


def test_an_answer_is_found_in_any_window_of_a_long_context(answered):
    result, _, _ = answered
    predictor = Predictor(result.model, "cpu")
    filler = "word3 word4 word5 " * 40
    for before in (0, 100, 350):
        context = f"{filler[:before]} awful {filler}"
        (answer,) = predictor([{"question": "what is word1", "context": context}])
        assert answer["answer"] == context[answer["start"] : answer["end"]] == "awful"
        assert answer["truncated_tokens"] == 0


def test_a_file_is_answered_in_its_order_without_labels(answered, tmp_path):
    _, rows, folder = answered
    unlabelled = [{name: row[name] for name in ("id", "question", "context")} for row in rows]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unlabelled))
    for out in ("out.jsonl", "out.csv"):
        assert main(["predict", str(folder / "run"), str(tmp_path / "new.jsonl"), "--out", str(tmp_path / out)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    header, first, *_ = (tmp_path / "out.csv").read_text().splitlines()
    answer = ",".join(f"predicted_{name}" for name in ("answer", "score", "start", "end", "nbest"))
    assert header == f"id,question,context,{answer},truncated_tokens"
    assert lines[0]["prediction"]["answer"] in first
    # SQuAD's own JSON, with its answers, gives the same.
    assert main(["predict", str(folder / "run"), str(folder / "dev.json"), "--out", str(tmp_path / "s.jsonl")]) == 0
    squads = [json.loads(line)["prediction"] for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert squads == [line["prediction"] for line in lines]


def test_evaluate_gives_the_figures_of_the_run(answered, tmp_path):
    result, _, folder = answered
    found = evaluate(result.model, folder / "dev.json", report=tmp_path, device="cpu")
    assert found.figures == pytest.approx(result.tuned["dev"])
    assert json.loads((tmp_path / "predictions.json").read_text()) == written(result, "predictions.json")


def test_no_answer_is_learned_and_its_threshold_tuned(doubtful):
    result, rows = doubtful
    predictions, null_scores = written(result, "predictions.json"), written(result, "null_odds.json")
    task = json.loads((result.model / "task.json").read_text())
    figures = scores_2_0(golds(rows), predictions, null_scores)
    found = result.tuned["dev"]
    assert found["exact_match"] == pytest.approx(figures["exact"])
    for name in ("f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "best_f1", "best_f1_thresh"):
        assert found[name] == pytest.approx(figures[name]), name
    assert task["null_threshold"] > found["best_f1_thresh"]
    assert found["f1"] == pytest.approx(found["best_f1"]), "the threshold that was tuned is used"
    assert found["f1"] > 90
    assert result.baseline == pytest.approx(100 * sum(row["is_impossible"] for row in rows) / len(rows))
    assert result.class_counts.keys() == {"with an answer", "without an answer"}
    for name, text in predictions.items():
        assert (text == "") == (null_scores[name] > task["null_threshold"])


def test_a_question_without_an_answer_gets_none(doubtful):
    result, rows = doubtful
    predictor = Predictor(result.model, "cpu", precision="fp32", top=20)
    predictions = written(result, "predictions.json")
    for row, answer in zip(rows, predictor(rows), strict=True):
        assert answer["answer"] == predictions[row["id"]]
        assert (answer["start"] is None) == (answer["answer"] == "")
        assert "" in [each["text"] for each in answer["nbest"]]


def test_a_threshold_that_the_user_sets_is_kept(model, tmp_path):
    settings = replace(QUICK, epochs=1, null_threshold=-2.5)
    result = finetune("qa", model, questions(20, 3, 0.4), questions(20, 4, 0.4), tmp_path / "run", settings=settings)
    assert json.loads((result.model / "task.json").read_text())["null_threshold"] == -2.5


def test_a_conversation_reads_rows_from_prompts(answered, capsys):
    _, rows, folder = answered
    predictor = Predictor(folder / "run", "cpu")
    typed = iter(
        [rows[0]["question"], rows[0]["context"], "what is word2", "", "what is word3", " ", rows[1]["question"], ""]
    )
    prompts = []

    def read(prompt):
        prompts.append(prompt)
        if (line := next(typed, None)) is None:
            raise EOFError
        return line

    assert converse(predictor, read) == 4
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["answer"] for each in found] == [rows[0]["answers"][0]["text"]] * 4, "an empty context keeps the last"
    assert prompts[:4] == ["question: ", "context: ", "question: ", "context (empty: the last one): "]


def test_a_conversation_names_a_row_that_cannot_be_used_and_continues(answered, capsys):
    _, rows, folder = answered
    typed, prompts = iter([rows[0]["question"], " ", rows[0]["question"], rows[0]["context"], ""]), []
    assert converse(Predictor(folder / "run", "cpu"), lambda prompt: prompts.append(prompt) or next(typed)) == 1
    printed = capsys.readouterr()
    needs = "each row of this model needs question and context; give the row again"
    assert f"not answered, because context is empty: {needs}\n" in printed.err
    assert prompts == ["question: ", "context: "] * 2 + ["question: "], "there is no context yet that could be kept"
    assert json.loads(printed.out)["answer"] == rows[0]["answers"][0]["text"]


def test_a_conversation_asks_for_what_the_rows_of_each_kind_have(model, capsys):
    prompts = []

    def read(prompt):
        prompts.append(prompt)
        return "word1 [MASK] word2" if len(prompts) == 1 else ""

    assert converse(Predictor(model, "cpu"), read) == 1
    assert len(json.loads(capsys.readouterr().out)["guesses"]) == 1
    assert prompts == ["text: ", "text: "]
    assert Choice.prompts(Columns(choices="a,b")) == ["text", "a", "b"]
    assert Choice.prompts(Columns()) == ["text", "choices"]
    assert Tag.prompts(Columns(text="words")) == ["words"]
    assert Classify.prompts(Columns(text_b="other")) == ["text", "other"]
    assert Score.prompts(Columns()) == ["text", "text_b"]


def test_a_conversation_over_a_pipe(answered, capsys, monkeypatch):
    import io

    _, rows, folder = answered
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{rows[0]['question']}\n{rows[0]['context']}\n"))
    assert main(["predict", str(folder / "run"), "--interactive"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == rows[0]["answers"][0]["text"]
    monkeypatch.setattr("sys.stdin", io.StringIO("who\n"))
    assert main(["predict", str(folder / "run"), "--interactive"]) == 0
    assert "the input ends before the context of the last row, which is not answered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "one of these is required"),
        (["--question", "who"], "belong together"),
        (["rows.csv", "--interactive"], "exactly one of these is required"),
        (["--question", "who", "--context", "x", "--n-best", "0"], "--n-best is 0"),
        (["--question", "who", "--context", "x", "--out", "f.jsonl"], "--out is not read without a file of rows"),
        (["--question", "who", "--context", " "], "column 'context' is empty"),
    ],
)
def test_flags_of_predict_that_do_not_go_together(answered, flags, message, capsys):
    assert main(["predict", str(answered[2] / "run"), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_answers_no_questions_says_so(model, capsys):
    assert main(["predict", str(model), "--question", "who", "--context", "x"]) == 2
    assert "does not answer questions" in capsys.readouterr().err


BAD = {
    "an answer that is not in the context": ({"answers": ["nowhere"]}, "not in the context"),
    "a start that is wrong": ({"answers": [{"text": "lovely", "answer_start": 500}]}, "other words where"),
}


@pytest.mark.parametrize("bad", BAD)
def test_training_rows_whose_answer_cannot_be_found_are_left_out_and_named(model, tmp_path, said, bad):
    change, message = BAD[bad]
    rows = questions(20, 1)
    rows[3] |= change
    rows[7] |= change
    result = finetune("qa", model, rows, questions(8, 2), tmp_path / "run", settings=replace(QUICK, epochs=1))
    (line,) = [each for each in said.messages if "are not learned" in each]
    assert line.startswith("warning: 2 of 20 questions")
    assert message in line
    assert line.endswith("row 4 (id question 3)\n    row 8 (id question 7)")
    assert result.rows["train"] == 18


def test_answers_without_a_start_are_found_and_counted(model, tmp_path, said):
    rows = [{**row, "answers": [row["answers"][0]["text"], "another"]} for row in questions(20, 1)]
    rows[0]["context"] += f" {rows[0]['answers'][0]}"
    finetune("qa", model, rows, questions(8, 2), tmp_path / "run", settings=replace(QUICK, epochs=1))
    assert "train: 20 questions with an answer without a start, found in the context" in said.messages
    assert "train: 20 questions with several answers, of which the first is learned" in said.messages
    assert any("at several places" in each for each in said.messages)


def test_what_is_doubtful_in_dev_rows_is_told(model, tmp_path, said):
    rows = questions(10, 2)
    rows[1]["id"] = rows[0]["id"]
    rows[2]["answers"] = []
    rows[2]["is_impossible"] = True
    rows[3]["answers"] = [{"text": "nowhere", "answer_start": 0}]
    settings = replace(QUICK, epochs=1, doc_stride=40, max_length=16)
    result = finetune("qa", model, questions(20, 1), rows, tmp_path / "run", settings=settings)
    told = "\n".join(said.messages)
    assert "1 of 10 questions have a first answer that is not in the context, or not where it should start" in told
    assert "1 of 10 questions have no answer, and this model always gives one" in told
    assert "1 id at several questions, such as question 0" in told
    assert "do not overlap" in told
    predictions = written(result, "predictions.json")
    assert len(predictions) == 10
    assert {"question 0 (row 1)", "question 0 (row 2)"} < set(predictions)
    assert result.tuned["dev"]["NoAns_f1"] == 0.0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "who", "answers": ["x"]}], "qa needs columns of a question, of a context"),
        ([{"question": "who", "context": "x", "answers": [" "]}], "an answer is an empty text"),
        ([{"question": "who", "context": "x", "answers": [{"text": "x", "answer_start": "y"}]}], "not a whole number"),
        ([{"question": "who", "context": "x", "answers": []}], "no training row has an answer"),
        ([{"question": "who", "context": "x", "answers": ["y"]}], "no training row has an answer"),
    ],
)
def test_rows_that_cannot_be_used_are_named(model, rows, message):
    with pytest.raises(BertsmithError) as caught:
        finetune("qa", model, rows, questions(8, 2), None, settings=QUICK)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unanswerable": False}, "8 training rows have no answer"),
        ({"metric": "accuracy"}, "metric 'accuracy' is not one of qa"),
        ({"max_length": 8, "max_query_length": 5}, "leaves none to its context"),
    ],
)
def test_settings_that_do_not_fit_the_rows(model, settings, message):
    train = questions(20, 3, 0.4)
    assert sum(not row["answers"] for row in train) == 8
    train[5]["question"] = "what is word1 word2 word3"
    with pytest.raises(BertsmithError) as caught:
        finetune("qa", model, train, questions(8, 4, 0.4), None, settings=replace(QUICK, **settings))
    assert message in str(caught.value)


def test_the_best_figures_select_only_where_there_may_be_no_answer(model):
    with pytest.raises(BertsmithError, match="best_f1 is of questions that may have no answer"):
        finetune("qa", model, questions(20, 1), questions(8, 2), None, settings=replace(QUICK, metric="best_f1"))


def test_a_file_that_is_not_squads(model, tmp_path):
    (tmp_path / "train.json").write_text('{"data": [{"title": "x", "paragraphs": [{"contxt": "y"}]}]}')
    with pytest.raises(BertsmithError, match="not as in SQuAD"):
        finetune("qa", model, tmp_path / "train.json", questions(8, 2), None, settings=QUICK)


def test_dev_rows_held_out_of_training_keep_the_questions_on_a_context_together(model, tmp_path):
    rows = questions(40, 1)
    again = [{**row, "id": f"{row['id']} again", "question": "what is word7"} for row in rows]
    settings = replace(QUICK, epochs=1, dev_share=0.25)
    result = finetune("qa", model, [*rows, *again], None, tmp_path / "run", settings=settings)
    asked = set(written(result, "predictions.json"))
    assert len(asked) == result.rows["dev"] == 20
    assert asked == {name.removesuffix(" again") for name in asked} | {
        f"{name.removesuffix(' again')} again" for name in asked
    }


def test_the_predictions_of_a_run_score_what_the_run_says(doubtful, answered, tmp_path):
    result, rows = doubtful
    (tmp_path / "dev.json").write_text(json.dumps(squad(rows)))
    report = result.folder / "report" / "dev"
    found = evaluate_predictions(report / "predictions.json", tmp_path / "dev.json").figures
    assert found == pytest.approx({name: result.tuned["dev"][name] for name in found})
    assert "NoAns_f1" in found
    result, rows, folder = answered
    found = evaluate_predictions(result.folder / "report" / "dev" / "predictions.json", folder / "dev.json")
    assert (found.figures, found.rows) == (pytest.approx(result.tuned["dev"]), len(rows))


def test_questions_of_one_id_are_scored_each_by_its_own_answer(tmp_path):
    rows = [{**row, "id": "twice"} for row in questions(2, 3)]
    (tmp_path / "dev.json").write_text(json.dumps(squad(rows)))
    records = read_records(tmp_path / "dev.json", reader=Qa)
    answers = {name: record.label[0].text for name, record in zip(keys_of(records), records, strict=True)}
    assert len(answers) == 2
    (tmp_path / "predictions.json").write_text(json.dumps(answers))
    assert evaluate_predictions(tmp_path / "predictions.json", tmp_path / "dev.json").figures["exact_match"] == 100
    (tmp_path / "odds.json").write_text(json.dumps(dict(zip(answers, (0.5, 2.0), strict=True))))
    given = tmp_path / "predictions.json", tmp_path / "dev.json"
    figures = evaluate_predictions(*given, null_scores=tmp_path / "odds.json").figures
    assert (figures["exact_match"], figures["best_exact"]) == (50, 100), "though every question has an answer"
