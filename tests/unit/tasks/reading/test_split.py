"""Rows divided into train and dev: none lost, none twice, balanced, the same every time."""

from __future__ import annotations

import contextlib
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.split import split, strata

CLASSES = st.lists(st.sampled_from("aaaaaabbbc"), min_size=1, max_size=80)
SHARES = st.sampled_from([0.05, 0.1, 0.125, 0.2, 0.3, 0.5, 0.77, 0.9])
SEEDS = st.integers(0, 2**32)


def divided(classes, units, share, seed, grouped=False):
    """A split; None where no row can go to dev."""
    with contextlib.suppress(BertsmithError):
        return split(classes, units, share, seed, grouped)
    return None


@given(CLASSES, SHARES, SEEDS, st.integers(1, 12), st.booleans())
def test_no_row_is_lost_or_doubled_and_no_unit_is_on_both_sides(classes, share, seed, units, grouped):
    names = [(place * 7 + seed) % units for place in range(len(classes))]
    found = divided(classes, names, share, seed, grouped)
    if found is None:
        return
    assert sorted(found.train + found.dev) == list(range(len(classes)))
    assert found.train == sorted(found.train)
    assert found.dev == sorted(found.dev)
    assert not {names[place] for place in found.train} & {names[place] for place in found.dev}
    counts = Counter(classes[place] for place in found.train)
    assert all(counts[each] for each in classes), "every class has a row in train"
    dev = {classes[place] for place in found.dev}
    assert found.only_train == {each: count for each, count in counts.items() if each not in dev}


@given(CLASSES, SHARES, SEEDS)
def test_every_class_is_within_a_row_of_its_share(classes, share, seed):
    found = divided(classes, range(len(classes)), share, seed)
    dev = Counter() if found is None else Counter(classes[place] for place in found.dev)
    for each, count in Counter(classes).items():
        assert abs(dev[each] - share * count) < 1
    if found is None:
        assert share * len(classes) < 2 or len(set(classes)) > 1


@given(st.integers(1, 80), st.integers(0, 80), SHARES, SEEDS, st.integers(1, 200))
def test_appended_rows_move_no_earlier_one(count, more, share, seed, different):
    """Texts may come several times."""
    texts = [place * place % different for place in range(count + more)]
    classes = ["aaab"[text % 4] for text in texts]
    before = divided(classes[:count], texts[:count], share, seed)
    after = divided(classes, texts, share, seed)
    dev = [] if after is None else [place for place in after.dev if place < count]
    assert dev == ([] if before is None else before.dev)


@given(CLASSES, SHARES, SEEDS, st.booleans())
def test_equal_arguments_give_an_equal_split(classes, share, seed, grouped):
    names = [place // 3 for place in range(len(classes))]
    assert divided(classes, names, share, seed, grouped) == divided(classes, names, share, seed, grouped)


@pytest.mark.parametrize(("share", "least", "most"), [(0.2, 30, 95), (0.3, 55, 125)])
def test_seeds_give_different_splits_and_every_row_its_chance(share, least, most):
    classes = ["b" if place % 4 == 3 else "a" for place in range(200)]
    splits = [split(classes, range(200), share, seed, False).dev for seed in range(300)]
    assert len({tuple(each) for each in splits}) == 300
    chosen = Counter(place for each in splits for place in each)
    assert all(least < chosen[place] < most for place in range(20, 200)), "60 or 90 are expected, give or take 7 or 8"
    firsts = {classes.index("a"), classes.index("b")}
    assert firsts == set(range(200)) - set(chosen), (
        "the first row of each class is always in train, every other may not"
    )


@given(SEEDS)
def test_classes_too_small_for_a_row_each_are_drawn_from_together(seed):
    classes = [place % 100 for place in range(400)]
    assert abs(len(split(classes, range(400), 0.1, seed, False).dev) - 40) <= 25, "5 deviations"


def test_a_class_of_one_row_stays_in_train_and_is_named():
    found = split(["a"] * 20 + ["rare"] + ["b"] * 20, range(41), 0.25, 3, False)
    assert 20 in found.train
    assert found.only_train == {"rare": 1}


def test_a_group_that_has_all_rows_of_a_class_stays_in_train():
    groups = [place // 2 for place in range(10)]
    assert all(8 in split([*"aaaaaaaaba"], groups, 0.5, seed, True).train for seed in range(20))


def test_rows_of_one_text_follow_the_first():
    texts = [place % 50 for place in range(150)]
    found = split(["a"] * 150, texts, 0.2, 1, False)
    assert len(found.dev) == 30
    assert Counter(texts[place] for place in found.dev) == dict.fromkeys({texts[place] for place in found.dev}, 3)


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_all_sizes_come_close_to_every_share(seed):
    sizes = [1 + (7 * number + seed) % 40 for number in range(60)]
    groups = [number for number, size in enumerate(sizes) for _ in range(size)]
    classes = ["rare" if place % 20 == 0 else "ab"[place % 3 == 0] for place in range(len(groups))]
    found = split(classes, groups, 0.2, seed, True)
    dev, whole = Counter(classes[place] for place in found.dev), Counter(classes)
    assert len(found.dev) == pytest.approx(0.2 * len(classes), abs=5)
    for each, count in whole.items():
        assert dev[each] / count == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(BertsmithError, match="dev_share is"):
        split(["a"] * 10, range(10), share, 1, False)


@pytest.mark.parametrize(
    ("classes", "units", "grouped"),
    [(["a"], [0], False), (list("abcdef"), range(6), False), (["a"] * 8, [0] * 8, True), (["a"] * 8, [0] * 8, False)],
)
def test_rows_that_cannot_be_divided_are_refused(classes, units, grouped):
    with pytest.raises(BertsmithError, match="no row can go to dev") as caught:
        split(classes, units, 0.5, 1, grouped)
    assert caught.value.fix.startswith(f"give several {'groups' if grouped else 'texts'}")
    with pytest.raises(BertsmithError, match="no row can go to dev"):
        split(classes, units, 0.99, 1, grouped)


def test_a_larger_share_is_advised_where_it_helps():
    with pytest.raises(BertsmithError, match="no row can go to dev") as caught:
        split(["a", "a", "b"], range(3), 0.01, 1, False)
    assert "use a larger share" in caught.value.fix
    assert split(["a", "a", "b"], range(3), 0.9, 1, False).dev


def test_ten_rows_can_be_divided():
    for seed in range(50):
        found = split(list("abababbaba"), range(10), 0.2, seed, False)
        assert len(found.dev) == 2
        assert found.only_train == {}


def test_labels_are_balanced_by_class_by_rarest_label_and_by_fifths():
    assert strata(["a", "b", "a"]) == ["a", "b", "a"]
    assert strata([1, 2, 1]) == [1, 2, 1]
    assert strata([("x", "y"), ("x",), (), ("x",)]) == ["y", "x", "none", "x"]
    assert strata([["O", "B-place", "O"], ["O", "O"], ["O"]]) == ["B-place", "O", "O"]
    place, person = SimpleNamespace(label="place"), SimpleNamespace(label="person")
    assert strata([(place, person), (place,), ()]) == ["person", "place", "none"]
    assert strata([({"text": "Rome"},), ({"text": "Oslo"}, {"text": "Rome"}), ()]) == ["some", "some", "none"]
    fifths = strata([float(number) for number in range(100)])
    assert Counter(fifths) == {f"{20 * number} to {20 * number + 19}": 20 for number in range(5)}
    assert fifths == [fifths[number // 20 * 20] for number in range(100)]
    assert len(set(strata([2.5] * 10))) == 1
