"""Puts this checkout's `src` on the path of a script, and of the processes that it starts, where Bertsmith is not
installed, as is usual on a machine that is lent for its GPU, or where it is another one than the checkout's."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = str(ROOT / "src")

found = importlib.util.find_spec("bertsmith")
if found is None or not Path(str(found.origin)).resolve().is_relative_to(SOURCES):
    sys.path.insert(0, SOURCES)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SOURCES, os.environ.get("PYTHONPATH"))))
