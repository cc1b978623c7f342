"""Versions are told without importing what they are of."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from bertsmith.base.versions import version_of


def test_versions_by_the_name_of_the_import() -> None:
    assert version_of("numpy") == np.__version__
    assert version_of("no_such_package_at_all") is None
    assert version_of("sklearn") == version_of("scikit-learn")


def test_nothing_is_imported_for_it() -> None:
    lines = ("import sys", "from bertsmith.base.versions import version_of", "version_of('torch')")
    code = "\n".join([*lines, "assert 'torch' not in sys.modules"])
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
