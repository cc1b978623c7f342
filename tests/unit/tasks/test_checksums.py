"""By what a run knows its rows when it is resumed."""

from __future__ import annotations

import numpy as np

from bertsmith.tasks.examples import checksums
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import Sequences
from bertsmith.tasks.task import Examples


def test_held_out_rows_in_any_unicode_form_have_the_checksum_of_earlier_versions() -> None:
    """As commit 5a717d7e gave it, before copies of a text in another form counted as copies."""
    none = np.zeros(0, np.int64)
    records = [Record("cafe\u0301  noir", None, "0", "row 1"), Record("Caf\u00e9", "b", "1", "row 2")]
    dev = Examples(records, Sequences([], none, none, none), none, none, "dev")
    assert checksums({}, {"dev": dev}) == {"dev": "432597b61a2cf12df5ce68f5228fa9baa16dbf795c706db8f4c2246f1a7a6730"}
