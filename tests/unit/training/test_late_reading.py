"""Numbers that the host reads a step later are those that stood on the device when they were sent."""

from __future__ import annotations

import torch

from bertsmith.training.records.late_reading import LateReading


def test_it_holds_what_was_there_when_it_was_made() -> None:
    values = torch.tensor([1.0, 0.0, 3.5])
    late = LateReading(values)
    values.fill_(-1)
    assert late.read() == [1.0, 0.0, 3.5]
    assert late.read() == [1.0, 0.0, 3.5]
