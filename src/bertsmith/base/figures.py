"""Figures drawn with matplotlib, which is optional: without a window, written whole as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import check_file, write_whole

INSTALL = "pip install 'bertsmith[plots]'"
_DPI = 110


def new_figure(width: float, height: float) -> Any:
    """An empty `matplotlib.figure.Figure`, sizes in inches; None where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_figure(path: Path) -> None:
    """Raises BertsmithError for another kind of picture, and where it cannot be written."""
    if path.suffix.lower() != ".png":
        raise BertsmithError(f"'{path.suffix}' is not a kind of picture that is written here", path, "use .png")
    check_file(path)


def save_figure(figure: Any, path: Path) -> None:
    """Writes the figure as PNG. Raises BertsmithError when the disk refuses."""
    # `savefig` would draw it all once more, only to have it laid out.
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    write_whole(path, figure.canvas.print_png)
