"""What an exported folder holds, what is refused, and that a refused export leaves nothing behind."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.base.processor import Processor, this_processor
from bertsmith.cli import main
from bertsmith.inference.backends import engines
from bertsmith.inference.export.export import ExportOptions, export
from bertsmith.inference.export.int8 import Int8Loss
from bertsmith.inference.predictor import Predictor
from bertsmith.weights.huggingface import load_encoder, read_config
from made_commands import Command
from made_heads import LABELS, made_head, needs_engines
from made_rows import CONFIG, QUICK, made_model, rows

pytestmark = needs_engines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that tells praise from blame, and its dev rows in dev.jsonl beside it."""
    root = tmp_path_factory.mktemp("run")
    train, dev = rows(96, 1), rows(60, 2)
    settings = replace(QUICK, metric="macro_f1")
    bertsmith.finetune("classify", made_model(root / "mini"), train, dev, root / "labels", settings=settings)
    (root / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dev))
    return root


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """ONNX Runtime's session of a small encoder, and the encoder itself."""
    import onnxruntime

    root = tmp_path_factory.mktemp("encoder")
    export(made_head("encoder", root / "encoder"), root / "onnx")
    session = onnxruntime.InferenceSession(str(root / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    return session, load_encoder(root / "encoder")


@settings(max_examples=40)
@given(st.data())
def test_any_mask_gives_what_the_encoder_gives(encoder: tuple[Any, Any], data: st.DataObject) -> None:
    """Padding on the right, on the left and in between; a row must have one token."""
    session, model = encoder
    batch, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    mask = (generator.random((batch, columns)) < 0.6).astype(np.int64)
    mask[np.arange(batch), generator.integers(columns, size=batch)] = 1
    ids, kinds = generator.integers(0, CONFIG.vocab_size, mask.shape), generator.integers(0, 2, mask.shape)
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
    hidden, vectors = session.run(["last_hidden_state", "sentence_embedding"], feed)
    with torch.no_grad():
        expected = model.encode_padded(*(torch.from_numpy(feed[name]) for name in feed)).numpy()
    assert np.abs(hidden - expected)[mask > 0].max() < 1e-4
    means = (expected * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    assert np.abs(vectors - means).max() < 1e-4


@pytest.mark.parametrize("real", [slice(2), slice(-2, None)], ids=["right", "left"])
def test_much_padding_has_no_part_in_what_a_short_row_gives(real: slice, encoder: tuple[Any, Any]) -> None:
    session, model = encoder
    mask = np.ones((2, CONFIG.max_position_embeddings), dtype=np.int64)
    mask[1] = 0
    mask[1, real] = 1
    ids = np.random.default_rng(3).integers(0, CONFIG.vocab_size, mask.shape)
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
    (hidden,) = session.run(["last_hidden_state"], feed)
    with torch.no_grad():
        expected = model.encode_padded(*(torch.from_numpy(each) for each in feed.values())).numpy()
    assert np.abs(hidden - expected)[mask > 0].max() < 1e-5


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_int8_is_measured_on_the_rows_and_runs(engine: str, run: Path, tmp_path: Path, capfd: Any) -> None:
    """By the metric that the model was chosen by, and by the columns that are named."""
    out, data = tmp_path / "out", tmp_path / "dev.jsonl"
    named = [{"body": row["text"], "mark": row["label"]} for row in rows(60, 2)]
    data.write_text("".join(json.dumps(row) + "\n" for row in named))
    columns = ["--columns.text", "body", "--columns.label", "mark"]
    status = main(["export", str(run / "labels"), "--to", engine, "--out", str(out), "--int8", "--data", str(data),
                   "--max-loss", "0.2", *columns])  # fmt: skip
    assert status == 0
    facts = json.loads((out / "export.json").read_text())
    loss = facts["int8"]
    assert facts["int8_group"] == CONFIG.hidden_size  # with a longer one OpenVINO would not multiply in int8
    assert (loss["metric"], loss["rows"], loss["max_loss"]) == ("macro_f1", 60, 0.2)
    assert loss["fp32"] > 0.9
    assert f"macro_f1 of 60 rows: {loss['fp32']:.4f} in fp32, {loss['int8']:.4f} in int8" in capfd.readouterr().err
    assert sorted(each.name for each in out.iterdir()) == facts["files"]
    assert {*facts["made_with"]} == {"bertsmith", "onnx", "torch", "onnxruntime" if engine == "onnx" else engine}
    texts = [row["text"] for row in rows(60, 3)]
    found, exact = (
        np.array([each["scores"]["praise"] for each in Predictor(out, backend=engine, precision=precision)(texts)])
        for precision in ("int8", "fp32")
    )
    assert 0 < np.abs(found - exact).max() < 0.1


def test_int8_that_costs_too_much_is_refused_and_nothing_is_written(tmp_path: Path, capfd: Any) -> None:
    """The labels are the numbers of the model in fp32, so any other numbers are worse."""
    folder, data = made_head("regress", tmp_path / "drawn"), tmp_path / "rows.jsonl"
    texts = [{"text": row["text"]} for row in rows(50, 5)]
    exact = Predictor(folder, "cpu", precision="fp32")(texts)
    labelled = [{**row, "label": each["number"]} for row, each in zip(texts, exact, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    command = ["export", str(folder), "--to", "onnx", "--out", str(tmp_path / "out"), "--int8", "--data", str(data)]
    assert main([*command, "--max-loss", "0"]) == 2
    said = capfd.readouterr().err
    assert "of 50 rows: 1.0000 in fp32" in said
    assert "--max-loss allows 0.00%" in said
    assert sorted(each.name for each in tmp_path.iterdir()) == ["drawn", "rows.jsonl"]


def test_a_loss_is_a_share_of_the_figure_in_fp32() -> None:
    assert Int8Loss("f1", 10, 90.0, 89.1).share == pytest.approx(0.01)
    assert Int8Loss("accuracy", 10, 0.8, 0.9).share < 0
    assert Int8Loss("matthews", 10, 0.5, -0.1).share > 1


def test_a_metric_that_is_not_above_0_in_fp32_says_nothing(tmp_path: Path) -> None:
    """The labels run against the numbers of the model, so int8 could only gain."""
    folder, data = made_head("regress", tmp_path / "drawn"), tmp_path / "rows.jsonl"
    texts = [{"text": row["text"]} for row in rows(10, 5)]
    exact = Predictor(folder, "cpu", precision="fp32")(texts)
    labelled = [{**row, "label": -each["number"]} for row, each in zip(texts, exact, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    with pytest.raises(BertsmithError, match=r"-1.0000 in fp32, .* the metric says nothing on these rows"):
        export(folder, tmp_path / "out", ExportOptions(int8=True, data=data, max_loss=0.5))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["drawn", "rows.jsonl"]


def test_too_few_rows_for_a_small_loss_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match=r"a loss of 0.01 cannot be measured on 60 rows") as caught:
        export(run / "labels", tmp_path / "out", ExportOptions(int8=True, data=run / "dev.jsonl"))
    assert "give 100 rows or more" in str(caught.value)
    (tmp_path / "bad.jsonl").write_text((run / "dev.jsonl").read_text() + '{"text": "a"}\n')
    with pytest.raises(BertsmithError, match="1 of 61 rows cannot be used") as caught:
        export(run / "labels", tmp_path / "out", ExportOptions(int8=True, data=tmp_path / "bad.jsonl"))
    assert "finetune, distill and evaluate leave them out" in caught.value.fix, "which export does not"
    assert not (tmp_path / "out").exists()


def test_int8_asks_onnx_runtime_for_exact_products(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """On an x64 processor without VNNI the usual ones overflow; with it they are exact, and faster."""
    import onnxruntime

    asked, add = list[tuple[str, str]](), onnxruntime.SessionOptions.add_session_config_entry

    def added(options: Any, *entry: str) -> None:
        asked.append(entry)
        add(options, *entry)

    export(run / "labels", tmp_path / "out", ExportOptions(int8=True, measure=False))
    monkeypatch.setattr(onnxruntime.SessionOptions, "add_session_config_entry", added)
    answers = []
    for vnni in (False, True):
        monkeypatch.setattr(engines, "this_processor", lambda vnni=vnni: Processor("Linux", vnni=vnni))
        answers.append(Predictor(tmp_path / "out", backend="onnx", precision="int8")(["word1 word2", "word3"]))
    assert asked == [("session.x64quantprecision", "1")], "without VNNI alone"
    if this_processor().vnni:
        assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "relu"},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"layer_norm_eps": 0.1},
        {"num_attention_heads": 8, "intermediate_size": 40, "type_vocab_size": 1},
        {"max_position_embeddings": 4, "num_hidden_layers": 1},
    ],
    ids=str,
)
def test_every_shape_that_a_config_may_name_passes_the_check(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = made_head("many labels", tmp_path / "drawn", **changes)
    for engine in ("onnx", "openvino"):
        facts = export(folder, tmp_path / engine, ExportOptions(to=engine))
        assert 0 < facts["checked"]["differences"]["logits"] < 1e-4
        config, group = read_config(folder), facts["int8_group"]
        assert facts["checked"]["lengths"] == [*range(1, config.max_position_embeddings + 1)]
        assert (config.hidden_size % group, config.intermediate_size % group) == (0, 0), "else OpenVINO is not in int8"


def test_a_graph_that_differs_from_pytorch_is_not_written(tmp_path: Path, monkeypatch: Any) -> None:
    from bertsmith.inference.export.bert import _Graph

    scaled = _Graph._pooled
    monkeypatch.setattr(_Graph, "_pooled", lambda self, x: self._add("Mul", scaled(self, x), self.nodes.scalar(1.01)))
    with pytest.raises(BertsmithError, match=r"at length \d+ logits is .* from PyTorch's, more than 0.0001"):
        export(made_head("classify", tmp_path / "drawn"), tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["drawn"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (ExportOptions(int8=True), "--int8 needs labelled rows"),
        (ExportOptions(data=Path("dev.csv")), "--data is for --int8 alone"),
        (ExportOptions(max_loss=0.05), "--max-loss is for --int8"),
        (ExportOptions(to="tensorrt"), "nothing is exported to 'tensorrt'"),
        (ExportOptions(columns={"text": "body"}), "--columns is of the rows of --data"),
        (ExportOptions(name="a"), "--name is of a model for Triton"),
        (ExportOptions(to="triton", name="a/b"), "no name for a model"),
        *((ExportOptions(int8=True, data=Path("d"), max_loss=loss), f"--max-loss is {loss}") for loss in (2, -0.1)),
        (ExportOptions(int8=True, data=Path("-")), "--data is read more than once, and a pipe can be read once"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: ExportOptions, what: str, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match=what):
        export(made_head("tag", tmp_path / "tag"), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_an_earlier_export_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    folder, out = made_head("tag", tmp_path / "tag"), tmp_path / "out"
    export(folder, out)
    export(folder, out, ExportOptions(to="openvino"))
    assert not (out / "model.onnx").exists()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(BertsmithError, match=r"more than an earlier export \(notes.txt\)"):
        export(folder, out)
    with pytest.raises(BertsmithError, match="more than an earlier export"):
        export(folder, folder)
    for other in ("[]", '{"files": 5}'):
        (out / "export.json").write_text(other)
        with pytest.raises(BertsmithError, match="more than an earlier export"):
            export(folder, out)
    with pytest.raises(BertsmithError, match="a file is in the way"):
        export(folder, out / "notes.txt" / "x")
    with pytest.raises(BertsmithError, match="File name too long"):
        export(folder, tmp_path / ("x" * 300))
    with pytest.raises(BertsmithError, match="this name is not UTF-8"):
        export(folder, tmp_path / "\udcff")
    with pytest.raises(BertsmithError, match="in place of the root of a disk"):
        export(folder, tmp_path.anchor)
    with pytest.raises(BertsmithError, match="nothing is fetched from a hub by its name"):
        export(tmp_path / "nowhere", tmp_path / "new")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "tag"]


@pytest.mark.skipif(sys.platform == "win32", reason="the folder of a process cannot be replaced there")
def test_a_model_for_triton_is_named_after_the_folder_that_the_user_is_in(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "reviews").mkdir()
    monkeypatch.chdir(tmp_path / "reviews")
    export(made_head("tag", tmp_path / "tag"), ".", ExportOptions(to="triton", few_lengths=True))
    assert (tmp_path / "reviews" / "reviews" / "config.pbtxt").is_file()


def test_another_model_in_a_repository_is_not_deleted(tmp_path: Path) -> None:
    folder, out = made_head("tag", tmp_path / "tag"), tmp_path / "repository"
    for _ in range(2):
        export(folder, out, ExportOptions(to="triton", name="a"))
    for other in (ExportOptions(to="triton", name="b"), ExportOptions(to="onnx")):
        with pytest.raises(BertsmithError, match="a repository with the model 'a', which would be deleted"):
            export(folder, out, other)
    (out / "a" / "2").mkdir()
    (out / "a" / "2" / "model.onnx").write_bytes(b"mine")
    with pytest.raises(BertsmithError, match=r"more than an earlier export \(a/2/model.onnx\)"):
        export(folder, out, ExportOptions(to="triton", name="a"))
    assert (out / "a" / "1" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("kind", "what"),
    [("masked words", "not fine-tuned on labels"), ("encoder", "has no task, and so no metric")],
)
def test_int8_of_a_model_without_a_metric_is_refused(kind: str, what: str, tmp_path: Path) -> None:
    folder, data = made_head(kind, tmp_path / "model"), tmp_path / "rows.jsonl"
    data.write_text('{"text": "word1 [MASK]"}\n')
    with pytest.raises(BertsmithError, match=what):
        export(folder, tmp_path / "out", ExportOptions(int8=True, data=data))
    assert not (tmp_path / "out").exists()


def without_package(name: str, *arguments: str) -> int:
    """The command line where this package is not installed."""
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[each]
    pytest.MonkeyPatch().setitem(sys.modules, name, None)
    return main(arguments)


@pytest.mark.parametrize(("package", "to"), [("onnx", "onnx"), ("onnxruntime", "triton"), ("openvino", "openvino")])
def test_a_package_that_is_not_installed_is_named_with_its_extra(package: str, to: str, tmp_path: Path) -> None:
    folder = made_head("tag", tmp_path / "tag")
    export_it = ("export", str(folder), "--to", to, "--out", str(tmp_path / "out"))
    with Command(package, *export_it, does=without_package) as command:
        _, said = command.communicate()
        assert command.wait() == 2
    extra = "openvino" if to == "openvino" else "onnx"
    assert f"{package} is not installed" in said
    assert f"pip install 'bertsmith[{extra}]'" in said
    assert not (tmp_path / "out").exists()


def test_a_repository_for_triton_is_read_and_its_model_runs(tmp_path: Path) -> None:
    import onnxruntime

    folder, out = made_head("classify", tmp_path / "drawn"), tmp_path / "reviews"
    export(folder, out, ExportOptions(to="triton"))
    assert sorted(each.name for each in (out / "reviews").iterdir()) == ["1", "config.pbtxt", "folder", "labels.txt"]
    config = parsed((out / "reviews" / "config.pbtxt").read_text())
    assert (config.name, config.backend, config.max_batch_size) == ("reviews", "onnxruntime", 64)
    assert config.dynamic_batching.max_queue_delay_microseconds == 1000
    session = onnxruntime.InferenceSession(
        str(out / "reviews" / "1" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    # TYPE_INT64 is 9 and TYPE_FP32 11.
    kinds = {"tensor(int64)": 9, "tensor(float)": 11}
    for said, real in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [(each.name, each.data_type) for each in said] == [(each.name, kinds[each.type]) for each in real]
        for each, tensor in zip(said, real, strict=True):
            assert list(each.dims) == [size if isinstance(size, int) else -1 for size in tensor.shape[1:]]
    (logits,) = config.output
    assert (out / "reviews" / logits.label_filename).read_text().splitlines() == list(LABELS)
    row = {"text": "word1 word2", "text_b": "lovely"}
    ids = np.array([Predictor(folder).tokenizer.encode_pair(*row.values()).ids])
    kinds_of = np.array([[0, 0, 0, 0, 1, 1]])
    (found,) = session.run(
        ["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": kinds_of}
    )
    (expected,) = Predictor(folder, "cpu", precision="fp32")([row])
    powers = np.exp(found[0])
    assert dict(zip(LABELS, powers / powers.sum(), strict=True)) == pytest.approx(expected["scores"], abs=1e-4)
    assert (out / "reviews" / "folder" / "tokenizer.json").is_file()


def test_labels_that_triton_could_not_list_are_refused_before_any_work(tmp_path: Path) -> None:
    folder = made_head("regress", tmp_path / "drawn")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": {"1": "a number"}}))
    assert list(Predictor(folder, "cpu")(["word1"])[0]) == ["number", "truncated_tokens"]
    with pytest.raises(BertsmithError, match="not numbered from 0"):
        export(folder, tmp_path / "repository", ExportOptions(to="triton"))
    assert [each.name for each in tmp_path.iterdir()] == ["drawn"]


def parsed(text: str) -> Any:
    """A configuration of Triton's, by the fields of model_config.proto that are used; any other one is an error."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = descriptor_pb2.FileDescriptorProto(name="config.proto", syntax="proto3")
    number, word, enum, message = 5, 9, 14, 11
    kinds = file.enum_type.add(name="DataType")
    for name, value in (("TYPE_INVALID", 0), ("TYPE_INT64", 9), ("TYPE_FP32", 11)):
        kinds.value.add(name=name, number=value)
    fields = {
        "Tensor": [
            ("name", word, 1, ""), ("data_type", enum, 1, ".DataType"), ("dims", 3, 3, ""),
            ("label_filename", word, 1, ""),
        ],
        "Batching": [("max_queue_delay_microseconds", 4, 1, "")],
        "Config": [
            ("name", word, 1, ""), ("backend", word, 1, ""), ("max_batch_size", number, 1, ""),
            ("input", message, 3, ".Tensor"), ("output", message, 3, ".Tensor"),
            ("dynamic_batching", message, 1, ".Batching"),
        ],
    }  # fmt: skip
    for name, those in fields.items():
        made = file.message_type.add(name=name)
        for place, (field, kind, label, of) in enumerate(those, start=1):
            made.field.add(name=field, number=place, type=kind, label=label, **({"type_name": of} if of else {}))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return text_format.Parse(text, message_factory.GetMessageClass(pool.FindMessageTypeByName("Config"))())


def test_a_task_file_that_describes_no_task_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = made_model(tmp_path / "mini")
    (encoder / "task.json").write_text("[]")
    assert main(["export", str(encoder), "--to", "onnx", "--out", str(tmp_path / "out")]) == 2
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("this file does not describe a")]
    assert not (tmp_path / "out").exists()
