"""What a student's step is counted as: the products that it takes, and the teacher's forward pass."""

from __future__ import annotations

import pytest

from bertsmith.model.flop import step_flop
from bertsmith.training.pretraining.distil import HIDDEN, DistilledPretraining, Teaching
from made_pretraining import batch_of, fresh_model
from made_steps import CPU, SHAPE


@pytest.mark.parametrize("labels", [0.0, 1.0])
def test_operations_of_heads_are_counted_where_heads_run(labels: float) -> None:
    student, teacher = fresh_model(**SHAPE), fresh_model(**SHAPE | {"num_hidden_layers": 3}).eval()
    weights = {HIDDEN: 1.0} | ({"masked": labels, "next_sentence": labels} if labels else {})
    objective = DistilledPretraining(student, CPU, teaching=Teaching(teacher.encoder, weights, ((2, 3),), 2))
    batch = batch_of([16, 9, 30], seed=1)
    heads = {"masked": len(batch.masked_labels), "sequences": 3} if labels else {}
    counts = batch.tokens, float((batch.layout.lengths**2).sum())
    expected = step_flop(student.config, *counts, **heads) + step_flop(teacher.config, *counts) / 3
    assert objective.forward(batch, CPU).flop == pytest.approx(expected, rel=1e-12)
