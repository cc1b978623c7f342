"""Figures drawn with matplotlib, which is optional: without a window, written whole as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import check_file, write_whole

INSTALL = "pip install 'bertsmith[plots]'"


def new_figure(width: float, height: float) -> Any:
    """An empty `matplotlib.figure.Figure`, sizes in inches; None where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_figure(path: Path) -> None:
    """Raises BertsmithError for another kind of picture, and where it cannot be written."""
    if path.suffix.lower() != ".png":
        raise BertsmithError(f"'{path.suffix}' is not a kind of picture that is written here", path, "use .png")
    check_file(path)


def save_figure(figure: Any, path: Path) -> None:
    """Writes the figure as PNG. Raises BertsmithError when the disk refuses."""
    write_whole(path, lambda file: figure.savefig(file, format="png", dpi=110))
