"""Recipes from presets, files and flags: equal checks for all, and every mistake named where it was made."""

from __future__ import annotations

import dataclasses
import sys
from importlib import resources
from operator import attrgetter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.recipes.loader import FIELDS, load_recipe, presets
from bertsmith.recipes.ranges import RANGES
from bertsmith.recipes.schema import Masking, ModelShape, Phase, Recipe
from bertsmith.tokens.tokenizer import Tokenizer
from made_runs import save_recipe


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_presets_are_there_and_say_what_they_are():
    found = presets()
    of_bert_base = {"bert-base-adam", "bert-base-mlm", "bert-base-nvlamb"}
    assert set(found) == {
        *of_bert_base,
        "bert-large-nvlamb",
        "bert-mini",
        "bert-small-mlm",
        "bert-tiny",
        "budget",
        "quickstart",
    }
    assert all(len(text) > 20 for text in found.values())


@pytest.mark.parametrize(
    ("written", "meant"),
    [("true", "true"), ("false", "false"), ("auto", "auto"), ("'true'", "true"), ("no-graphs", "no-graphs")],
)
def test_a_bare_true_is_a_word_where_words_are_wanted(tmp_path, written, meant):
    recipe = load_recipe(write(tmp_path / "mine.yaml", f"compile: {written}\ngradient_checkpointing: true"))
    assert recipe.compile == meant
    assert recipe.gradient_checkpointing is True


@pytest.mark.parametrize("name", presets())
def test_a_preset_spells_every_field_out(name, caplog):
    caplog.set_level("INFO", logger="bertsmith")
    load_recipe(name, budget=True)
    assert not caplog.records, "a preset leaves no field to its default"


@pytest.mark.parametrize(
    ("name", "shape"),
    [("bert-large-nvlamb", (24, 1024, 16, 4096)), ("bert-base-nvlamb", (12, 768, 12, 3072))],
)
def test_nvidias_two_phases(name, shape):
    """The numbers of NVIDIA's BERT for PyTorch: scripts/run_pretraining.sh and its optimizer's defaults."""
    recipe = load_recipe(name)
    model = recipe.model
    assert (model.layers, model.hidden, model.heads, model.intermediate) == shape
    assert (model.hidden_dropout, model.attention_dropout, model.activation) == (0.1, 0.1, "gelu_pytorch_tanh")
    assert recipe.phase1 == Phase(128, 7038, 65536, 6e-3, 0.2843, 0.5)
    assert recipe.phase2 == Phase(512, 1563, 32768, 4e-3, 0.128, 0.5)
    optimizer = recipe.optimizer
    assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.epsilon) == ("lamb", 0.9, 0.999, 1e-6)
    assert (optimizer.weight_decay, optimizer.max_gradient_norm, optimizer.trust_ratio) == (0.01, 1.0, "decayed")
    assert optimizer.bias_correction
    assert dataclasses.astuple(recipe.masking) == (0.15, 0.8, 0.1, False, 0.0)
    assert dataclasses.astuple(recipe.pairs) == (0.5, 0.1)


def test_flags_go_over_the_preset():
    recipe = load_recipe("bert-tiny", ["--phase1.global_batch", "7", "--phase2.learning-rate=1e-4", "--seed", "3"])
    assert (recipe.phase1.global_batch, recipe.phase2.learning_rate, recipe.seed) == (7, 1e-4, 3)
    assert recipe.model == load_recipe("bert-tiny").model
    assert load_recipe("bert-tiny", ["--optimizer.max-gradient-norm=0"]).optimizer.max_gradient_norm == 0  # no clipping


def test_the_parser_of_flags_is_not_needed_for_a_recipe(monkeypatch):
    """So that a run begins sooner, and where it is not installed."""
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert load_recipe("bert-tiny", ["--seed=3", "--masking.no-whole-words", "--micro_batch_tokens", "auto"]).seed == 3


def test_flags_go_over_a_file_and_defaults_are_said(tmp_path, caplog):
    caplog.set_level("INFO", logger="bertsmith")
    path = write(tmp_path / "mine.yaml", "phase1: {steps: 5, learning_rate: 6e-3}\nprecision: fp32\n")
    recipe = load_recipe(path, ["--phase1.steps", "9", "--seed=3"])
    assert recipe == dataclasses.replace(Recipe(), phase1=Phase(steps=9), precision="fp32", seed=3)
    (record,) = caplog.records
    assert f"{len(FIELDS) - 4} fields left out, at the default: " in record.message
    assert "phase1.steps" not in record.message
    assert "phase2.steps" in record.message


def test_flags_that_the_recipe_does_not_read_are_said(said):
    load_recipe("bert-small-mlm", ["--phase2.learning-rate=0.1", "--optimizer.trust_ratio=all", "--phase2.steps=0"])
    assert [record.message for record in said.records] == [
        "--phase2.learning-rate: no effect (phase2.steps is 0)",
        "--optimizer.trust-ratio: no effect (adamw has none)",
    ]
    said.clear()
    read = ["--distillation.layer_map=0:0", "--distillation.relation_heads=4"]
    load_recipe("bert-mini", ["--phase2.learning-rate=0.1", "--optimizer.trust_ratio=all", *read])
    load_recipe("bert-mini", ["--distillation.attention=0", *read])
    assert not said.records
    load_recipe("bert-mini", [*read, *(f"--distillation.{name}=0" for name in ("hidden", "attention", "values"))])
    assert [record.message for record in said.records] == [
        "--distillation.layer-map: no effect (distillation.hidden is 0)",
        "--distillation.relation-heads: no effect (distillation.attention and distillation.values are 0)",
    ]
    said.clear()
    load_recipe(
        "bert-mini", ["--hours=1", "--phase1.steps=9", "--phase2.steps=9"]
    )  # phases share the time by their steps
    assert not said.records
    load_recipe("bert-mini", ["--hours=1", "--phase1.steps=9", "--phase2.steps=0"])
    assert [record.message for record in said.records] == ["--phase1.steps: no effect (hours end the only phase)"]


@pytest.mark.parametrize(
    ("text", "what", "where", "fix"),
    [
        ("phase1: {step: 5}", "no key 'phase1.step'", "mine.yaml, phase1.step", "'phase1.steps'"),
        ("optimiser: {name: lamb}", "no key 'optimiser'", "mine.yaml, optimiser", "'optimizer'"),
        ("phase1: {steps: many}", "phase1.steps is 'many'", "mine.yaml, phase1.steps", "whole number"),
        ("phase1: {steps: 1.5}", "phase1.steps is '1.5'", "mine.yaml, phase1.steps", "whole number"),
        ("phase1: {steps: yes}", "phase1.steps is 'True'", "mine.yaml, phase1.steps", "whole number"),
        ("phase1: {steps: [1, 2]}", "takes one value", "mine.yaml, phase1.steps", "steps: VALUE"),
        ("phase1: {steps: }", "takes one value", "mine.yaml, phase1.steps", "steps: VALUE"),
        ("phase1: 5", "phase1 is a section", "mine.yaml, phase1", "sequence_length"),
        ("optimizer: {name: sgd}", "optimizer.name is 'sgd'", "mine.yaml, optimizer.name", "lamb, adamw"),
        ("masking: {rate: 0}", "masking.rate is 0", "mine.yaml, masking.rate", "above 0"),
        ("masking: {rate: .nan}", "masking.rate is nan", "mine.yaml, masking.rate", "above 0"),
        ("masking: {rate: .inf}", "masking.rate is inf", "mine.yaml, masking.rate", "below 1"),
        ("hours: 1e300", "hours is 1e+300", "mine.yaml, hours", "to 1e+06"),
        ("optimizer: {epsilon: 1e-50}", "optimizer.epsilon is 1e-50", "mine.yaml, optimizer.epsilon", "from 1e-30"),
        ("optimizer: {max_gradient_norm: 9e-7}", "below optimizer.epsilon 1e-06", "mine.yaml, optimizer", "or use 0"),
        ("optimizer: {max_gradient_norm: .inf}", "max_gradient_norm is inf", "mine.yaml, optimizer", "from 0"),
        ("optimizer: {max_gradient_norm: .nan}", "max_gradient_norm is nan", "mine.yaml, optimizer", "from 0"),
        ("optimizer: {weight_decay: 1e300}", "weight_decay is 1e+300", "mine.yaml, optimizer", "to 1e+06"),
        ("seed: 1\nseed: 2", "'seed' is given twice", "mine.yaml, line 2", "YAML"),
        ("3: 1", "is not text", "mine.yaml, line 1", "YAML"),
        ("seed: [1", "not valid YAML", "mine.yaml, line ", "YAML"),
        ("", "has no keys", "mine.yaml", "model"),
        ("- 1", "has no keys", "mine.yaml", "model"),
        ("a: !!python/object/apply:os.getcwd []", "not valid YAML", "mine.yaml", "YAML"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path, text, what, where, fix):
    with pytest.raises(BertsmithError) as raised:
        load_recipe(write(tmp_path / "mine.yaml", text))
    assert what in raised.value.what
    assert where in raised.value.where
    assert fix in raised.value.fix


@pytest.mark.parametrize(
    ("flags", "what", "where", "fix"),
    [
        (["--phase1.step", "5"], "'--phase1.step' is not a field", "--phase1.step", "'--phase1.steps'"),
        (["--phase1.steps", "x"], "phase1.steps is 'x'", "--phase1.steps", "whole number"),
        (["--phase1.steps"], "has no value", "--phase1.steps", "VALUE"),
        (["--phase1.steps", "--seed", "1"], "has no value", "--phase1.steps", "VALUE"),
        (["--keep", "9" * 400], "keep is '999", "--keep", "at most 64 bits"),
        (["--phase1.steps", "-1"], "phase1.steps is -1", "--phase1.steps", "from 0"),
        (["stray"], "'stray' is not a field", "stray", "--FIELD VALUE"),
        ("--phase1.steps 2", "overrides is '--phase1.steps 2'", "overrides", '["--phase1.steps", "2"]'),
        (["--phase1.steps", 2], "overrides is ['--phase1.steps', 2]", "overrides", "a list of texts"),
        ({"--phase1.steps": "2"}, "overrides is {'--phase1.steps': '2'}", "overrides", "a list of texts"),
        (None, "overrides is None", "overrides", "a list of texts"),
        (["--model.heads", "3"], "not a multiple of model.heads 3", "--model.heads", "divides"),
        (["--device", "tpu"], "'tpu' is not known", "--device", "cuda"),
        (["--device", "cuda:first"], "'cuda:first' is not known", "--device", "cuda:N"),
        (["--masking.random_share", "0.3"], "sum to more than 1", "--masking.random-share", "lower one"),
        (
            ["--phase1.schedule=warmup_stable_decay", "--phase1.decay_share=0.95"],
            "phase1.decay_share 0.95 sum to more than 1",
            "--phase1.decay-share",
            "lower one",
        ),
        (
            [f"--distillation.{name}=0" for name in ("labels", "hidden", "attention", "values")],
            "no loss has a weight above 0",
            "--distillation.labels",
            "set one of labels",
        ),
        (["--phase1.steps=0", "--phase2.steps=0"], "nothing to train", "--phase1.steps", "steps"),
        (["--phase2.sequence_length", "600"], "longer than model.max_positions", "--phase2.sequence-length", "raise"),
        (["--micro_batch_tokens", "100"], "more than micro_batch_tokens 100", "--micro-batch-tokens", "at least 128"),
    ],
)
def test_a_mistake_in_a_flag_is_named(flags, what, where, fix):
    with pytest.raises(BertsmithError) as raised:
        load_recipe("bert-tiny", flags)
    assert what in raised.value.what
    assert raised.value.where == where
    assert fix in raised.value.fix


OUTSIDE = """
    micro_batch_tokens=0 log_every=0 evaluate_every=0 evaluate_instances=0 save_every=0 keep=0 loader_workers=-1
    model.layers=0 model.hidden=0 model.heads=0 model.intermediate=0 model.embedding_deviation=0
    model.hidden_dropout=1 model.attention_dropout=1 phase1.sequence_length=0 phase1.global_batch=0
    phase1.learning_rate=0 phase2.warmup=1.01 phase2.decay_share=1.01 masking.rate=1 masking.final_rate=1
    optimizer.beta1=1 optimizer.beta2=1 pairs.random_next=1.01
"""


@pytest.mark.parametrize("outside", OUTSIDE.split())
def test_what_would_divide_by_zero_or_learn_nothing_is_refused(outside):
    with pytest.raises(BertsmithError) as raised:
        load_recipe("bert-tiny", [f"--{outside}"])
    assert raised.value.fix.startswith("use a number ")


def test_one_loss_of_a_student_is_enough():
    without = [f"--distillation.{name}=0" for name in ("labels", "hidden", "attention")]
    assert load_recipe("bert-mini", without).distillation.values == 1


def test_the_preset_that_hours_complete_is_no_recipe_by_itself():
    with pytest.raises(BertsmithError, match="leaves model, batch and rate to the hours"):
        load_recipe("budget")


@pytest.mark.parametrize("wrong", [None, 3, b"bert-tiny", Recipe], ids=repr)
def test_what_is_no_path_is_no_recipe(wrong):
    with pytest.raises(BertsmithError, match=r"^recipe is of type .*, which is no path"):
        load_recipe(wrong)


def test_a_folder_is_no_recipe(tmp_path):
    with pytest.raises(BertsmithError, match="this is a folder, and not a recipe"):
        load_recipe(tmp_path)
    (tmp_path / "recipe.yaml").write_text("seed: 1")
    with pytest.raises(BertsmithError, match=r"did you mean '.*recipe.yaml'\?"):
        load_recipe(tmp_path)
    (tmp_path / "recipe.yaml").write_text("task: classify\nmodel: runs/mini\n")  # as a run of fine-tuning has it
    with pytest.raises(BertsmithError, match="this is a folder, and not a recipe") as raised:
        load_recipe(tmp_path)
    assert "recipe.yaml" not in raised.value.fix


@pytest.mark.parametrize(
    "text", ["seed: 010", "phase1: {steps: 1:30}", "seed: 0x1F", "phase1: {learning_rate: 1:30.5}"]
)
def test_numbers_that_yaml_reads_as_others_are_refused(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(BertsmithError, match="is no decimal number, and YAML would read another one"):
        load_recipe(tmp_path / "mine.yaml")


def test_decimal_numbers_are_read_as_they_are_written(tmp_path):
    (tmp_path / "mine.yaml").write_text("seed: 1_000\nphase1: {learning_rate: 0.001, warmup: 0, steps: 40}\n")
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert (recipe.seed, recipe.phase1.learning_rate, recipe.phase1.warmup) == (1000, 0.001, 0.0)


@pytest.mark.parametrize("text", ["a: " + "[" * 500, "seed: " + "9" * 5000, "seed: !!int [1]", "seed: !!bool maybe"])
def test_what_no_recipe_has_is_one_message(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(BertsmithError, match="this recipe"):
        load_recipe(tmp_path / "mine.yaml")


def test_a_recipe_that_is_not_text_is_said(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"seed: \xff\xfe")
    with pytest.raises(BertsmithError, match="not UTF-8"):
        load_recipe(tmp_path / "mine.yaml")


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    path, usual = write(tmp_path / "mine.yaml", "seed: 1"), Path.read_text

    def read_text(self, *how, **more):
        if self == path:
            raise PermissionError(13, "Permission denied")
        return usual(self, *how, **more)

    monkeypatch.setattr(Path, "read_text", read_text)
    for read in (load_recipe, Tokenizer.load):  # of a file that is not JSON, a list of pieces
        with pytest.raises(BertsmithError, match=r"cannot be read \(Permission denied\)") as caught:
            read(path)
        assert caught.value.where == str(path)


def test_a_phase_without_steps_may_be_longer_than_the_model():
    recipe = load_recipe("bert-tiny", ["--phase2.steps=0", "--model.max_positions=128", "--micro_batch_tokens=128"])
    assert recipe.phase2.sequence_length == 512
    assert recipe.longest == 128


def test_every_number_has_a_range():
    values = {name: attrgetter(name)(Recipe()) for name in FIELDS}
    numbers = {name for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    assert numbers == set(RANGES)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("True", True), ("false", False)])
def test_a_switch_is_true_or_false(tmp_path, text, value):
    """In YAML and as a flag, and written back such that it is read again."""
    assert load_recipe("bert-tiny", [f"--gradient-checkpointing={text}"]).gradient_checkpointing is value
    (tmp_path / "a.yaml").write_text(f"gradient_checkpointing: {text}\n")
    recipe = load_recipe(tmp_path / "a.yaml")
    assert recipe.gradient_checkpointing is value
    save_recipe(recipe, tmp_path / "b.yaml")
    assert load_recipe(tmp_path / "b.yaml") == recipe
    with pytest.raises(BertsmithError, match="gradient_checkpointing is 'perhaps'") as caught:
        load_recipe("bert-tiny", ["--gradient-checkpointing=perhaps"])
    assert caught.value.fix == "use true or false"


@pytest.mark.parametrize(
    "words",
    [
        "The probability that a document is cut to a random shorter length, drawn once per document",
        "orthogonal value and output weights in the last layer",
        "Processes that build batches ahead; 0 builds them in a thread of the main process",
    ],
)
def test_help_says_what_the_code_does(words, capsys):
    assert main(["pretrain", "bert-tiny", "--help"]) == 0
    assert words in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_preset_of_bert_large_says_where_it_is_not_nvidias():
    text = (resources.files("bertsmith.recipes") / "presets" / "bert-large-nvlamb.yaml").read_text(encoding="utf-8")
    said = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert "Every number" not in said
    assert "cut at two deviations (0.0176 in effect), while NVIDIA draws from normal(0, 0.02)" in said


shares = st.floats(0, 1)
recipes = st.builds(
    Recipe,
    model=st.builds(
        ModelShape,
        layers=st.integers(1, 99),
        heads=st.sampled_from([1, 2, 4]),
        hidden=st.sampled_from([4, 64, 768]),
        hidden_dropout=st.floats(0, 1, exclude_max=True),
        activation=st.sampled_from(["gelu", "gelu_pytorch_tanh"]),
    ),
    phase1=st.builds(Phase, steps=st.integers(1, 10**9), learning_rate=st.floats(1e-300, 10), warmup=shares),
    masking=st.builds(Masking, mask_share=st.floats(0, 0.5), random_share=st.floats(0, 0.5)),
    seed=st.integers(0, 2**63 - 1),
    device=st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
    precision=st.sampled_from(["auto", "fp32", "bf16"]),
)


@settings(max_examples=25)
@given(recipe=recipes)
def test_a_saved_recipe_reads_back_equal(recipe, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    save_recipe(recipe, path)
    assert load_recipe(path) == recipe
    assert set(yaml.safe_load(path.read_text())) == {field.name for field in dataclasses.fields(Recipe)}
