"""Figures drawn with matplotlib, which is optional: without a window, written whole as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith.base.files import write_whole

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


def save_figure(figure: Any, path: Path) -> None:
    """Writes the figure as PNG. Raises BertsmithError when the disk refuses."""
    write_whole(path, lambda file: figure.savefig(file, format="png", dpi=110))
