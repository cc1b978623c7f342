"""The whole pipeline in minutes, on a CPU: labels that the text itself carries, the stages, and the report at the
end."""

from bertsmith.quickstart.stages import quickstart

__all__ = ["quickstart"]
