"""Doubtful labels: planted ones are found, the two rankings, and the definition of confident learning."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring.calibration import log_probabilities
from bertsmith.tasks.scoring.label_errors import confident_doubts, worst_by_loss


def planted(rows=600, classes=4, wrong=30, seed=0):
    """Log-probabilities of a decent model, labels of which `wrong` were changed, and the rows of these."""
    draw = np.random.default_rng(seed)
    true = draw.integers(0, classes, rows)
    logits = draw.normal(size=(rows, classes)) + 4 * np.eye(classes)[true]
    changed = draw.choice(rows, wrong, replace=False)
    given_labels = true.copy()
    given_labels[changed] = (true[changed] + 1) % classes
    return log_probabilities(logits), given_labels, true, set(changed.tolist())


@pytest.mark.parametrize("find", [worst_by_loss, confident_doubts])
def test_planted_label_errors_come_first(find):
    logs, labels, true, changed = planted()
    found = find(logs, labels)
    assert len(found) == 20
    assert {each.row for each in found} <= changed
    assert all(each.suggested == true[each.row] != each.given == labels[each.row] for each in found)
    assert all(each.margin < 0 < each.loss for each in found)


def test_their_figures():
    logs = np.log([[0.2, 0.5, 0.3], [0.8, 0.1, 0.1], [0.4, 0.4, 0.2]])
    (found,) = worst_by_loss(logs, np.array([0, 0, 0]))
    assert (found.row, found.given, found.suggested) == (0, 0, 1)
    assert found.self_confidence == pytest.approx(0.2)
    assert found.margin == pytest.approx(-0.3)
    assert found.loss == pytest.approx(-np.log(0.2))


@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 2**31))
def test_the_orders_and_who_is_counted(rows, classes, seed):
    draw = np.random.default_rng(seed)
    logs = log_probabilities(draw.normal(size=(rows, classes)) * 2)
    labels = draw.integers(0, classes, rows)
    otherwise = np.flatnonzero(logs.argmax(1) != labels).tolist()
    assert [each.row for each in worst_by_loss(logs, labels)] == sorted(
        otherwise, key=lambda row: logs[row, labels[row]]
    )[:20]
    p = np.exp(logs)
    means = {each: p[labels == each, each].mean() for each in set(labels.tolist())}
    expected = {}
    for row in range(rows):
        believed = [each for each, mean in means.items() if p[row, each] >= mean]
        if believed:
            best = max(believed, key=lambda each: p[row, each])
            if best != labels[row]:
                expected[row] = best
    margins = {row: p[row, labels[row]] - np.delete(p[row], labels[row]).max() for row in expected}
    found = [(each.row, each.suggested) for each in confident_doubts(logs, labels)]
    assert found == [(row, expected[row]) for row in sorted(expected, key=margins.__getitem__)[:20]]


def test_a_class_that_a_model_is_less_sure_of_is_measured_by_its_own_mean():
    # Rows of class 1 get 0.3 of it at best, and yet none of them is in doubt; a row of class 0 with 0.3 of it is.
    logs = np.log([[0.95, 0.05]] * 9 + [[0.7, 0.3]] * 9 + [[0.69, 0.31]])
    labels = np.array([0] * 9 + [1] * 9 + [0])
    assert [each.row for each in confident_doubts(logs, labels)] == [18]
