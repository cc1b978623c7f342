"""What folders of sentence-transformers say, in the words of its versions, and what is refused by name."""

from __future__ import annotations

import json

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.embedding.folders import SentenceRules, folder_files, read_max_length, read_rules

MEAN = {"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": True}
OLD_CLS = {"word_embedding_dimension": 8, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def written(folder, kinds=("Transformer", "Pooling", "Normalize"), pooling=MEAN, **more):
    """A folder with these parts; more: contents of further files, without the `.json`."""
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": place, "name": str(place), "path": paths.get(kind, f"{place}_{kind}"), "type": f"some.module.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, value in {"modules": modules, **more}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_a_folder_without_modules_says_nothing(tmp_path):
    assert read_rules(tmp_path) is None


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("unit", [True, False])
def test_what_is_written_is_read_again(tmp_path, pooling, unit):
    rules = SentenceRules(pooling, unit, 77, True)
    for name, value in folder_files(rules, 8).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
    assert read_rules(tmp_path) == rules


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [(MEAN, "mean"), (OLD_CLS, "cls"), ({"pooling_mode": ["max"]}, "max"), ({"embedding_dimension": 8}, "mean")],
)
def test_both_ways_of_naming_a_pooling_are_read(tmp_path, pooling, expected):
    assert read_rules(written(tmp_path, pooling=pooling)) == SentenceRules(expected)


def test_the_length_is_its_own_or_the_tokenizers(tmp_path):
    folder = written(tmp_path, ("Transformer", "Pooling"), tokenizer_config={"model_max_length": 64})
    assert read_rules(folder) == SentenceRules(unit=False, max_length=64)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": true}')
    assert read_rules(folder) == SentenceRules(unit=False, max_length=32, lowercase=True)
    assert read_max_length(folder) == 64, "it is transformers' where sentence-transformers has not written it"
    (folder / "config_sentence_transformers.json").write_text("{}")
    assert read_max_length(folder) == 32


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kinds": ("Transformer", "Pooling", "Dense")}, "Transformer, Pooling, Dense"),
        ({"kinds": ("StaticEmbedding",)}, "StaticEmbedding"),
        ({"pooling": {"pooling_mode": "lasttoken"}}, "lasttoken"),
        ({"pooling": {"pooling_mode": None}}, "its pooling is None"),
        ({"pooling": {"pooling_mode_weightedmean_tokens": True}}, "weightedmean"),
        ({"pooling": {"pooling_mode_unheard_of": True}}, "pooling_mode_unheard_of"),
        ({"pooling": {"pooling_mode_mean_tokens": False}}, "its pooling is none"),
        ({"pooling": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}}, "cls with max"),
        ({"config_sentence_transformers": {"default_prompt_name": "query"}}, "prompt 'query'"),
        ({"config_sentence_transformers": {"truncate_dim": 0}}, "truncate_dim is 0"),
        ({"config_sentence_transformers": {"truncate_dim": "8"}}, "truncate_dim is '8'"),
        ({"sentence_bert_config": {"max_seq_length": "long"}}, "max_seq_length is 'long'"),
        ({"sentence_bert_config": ["long"]}, "no JSON object"),
        ({"modules": {"a": 1}}, "does not list"),
        ({"modules": [{"type": "x.Transformer", "path": "0_Transformer"}, {"type": "x.Pooling"}]}, "'0_Transformer'"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_its_name(tmp_path, changes, named):
    with pytest.raises(BertsmithError) as caught:
        read_rules(written(tmp_path, **changes))
    assert named in caught.value.what
    assert str(tmp_path) in str(caught.value.where)
