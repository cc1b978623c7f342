"""Which version of a package is installed, told without importing it: a look at torch's would cost seconds."""

from __future__ import annotations

import importlib.metadata
from functools import cache

# Packages that are installed by another name than they are imported by.
_INSTALLED_AS = {"sklearn": "scikit-learn"}


@cache
def version_of(package: str) -> str | None:
    """The version, or None where the package is not installed. package: the name that it is imported by."""
    try:
        return importlib.metadata.version(_INSTALLED_AS.get(package, package))
    except importlib.metadata.PackageNotFoundError:
        return None
