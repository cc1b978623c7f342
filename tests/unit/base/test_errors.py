"""One message for what a user can get wrong: what, where, fix."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError, nearest, ran_out_of_memory


def test_the_message_has_its_three_parts():
    error = BertsmithError("the corpus has no documents", Path("my/corpus"), "prepare it again")
    assert str(error) == "the corpus has no documents\n  where: my/corpus\n  fix:   prepare it again"
    assert (error.what, error.where, error.fix) == ("the corpus has no documents", "my/corpus", "prepare it again")


def test_parts_that_are_not_known_are_left_out():
    assert str(BertsmithError("no text was found")) == "no text was found"


def test_it_crosses_processes():
    """Worker processes hand their errors back pickled."""
    error = pickle.loads(pickle.dumps(BertsmithError("what", "where", "fix")))
    assert str(error) == str(BertsmithError("what", "where", "fix"))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pretrian", "did you mean 'pretrain'?"),
        ("zzz", "known are: finetune, pretrain"),
        ("finetun", "did you mean 'finetune'?"),
        ("tune", "did you mean 'finetune'?"),
        ("nonsense", "known are: finetune, pretrain"),
    ],
)
def test_the_nearest_word_is_named(word, said):
    assert nearest(word, ["pretrain", "finetune"]) == said


def test_flags_are_alike_by_more_than_their_dashes_and_labels_keep_their_signs():
    flags = ["--fold", "--learning-rate", "--weight-decay"]
    assert [nearest(each, flags) for each in ("--lr", "--wd")] == [f"did you mean '{each}'?" for each in flags[1:]]
    assert nearest("good", ["-1", "0", "1"]) == "known are: -1, 0, 1"


@pytest.mark.parametrize("word", [None, 5, ["pretrain"]])
def test_what_is_no_word_is_like_none(word):
    assert nearest(word, ["pretrain", "finetune"]) == "known are: finetune, pretrain"


@pytest.mark.parametrize(
    ("error", "of_memory"),
    [
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            True,
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("could not create a memory object"), True),
        (RuntimeError("could not create a primitive"), False),
        (RuntimeError("Unrecognized key 'x' in PYTORCH_CUDA_ALLOC_CONF"), False),
        (ValueError("no match"), False),
    ],
)
def test_what_ran_out_of_memory_is_known_by_its_words(error, of_memory):
    assert ran_out_of_memory(error) == of_memory
