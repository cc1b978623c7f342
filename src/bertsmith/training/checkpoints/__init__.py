"""Checkpoints of a run: written in the background whole or not at all, verified when they are loaded.

step-00000500/              the model's tensors and their moments, under names no model loader takes
best-00000400/              the weights that scored best up to some step folder, where a run selects

The checksums of a folder's files lie in its checksums.json; `docs/checkpoints.md` is for those who run it.
"""

from bertsmith.training.checkpoints.folders import drop_checkpoints as drop_checkpoints
from bertsmith.training.checkpoints.load import load_best as load_best
from bertsmith.training.checkpoints.load import load_checkpoint as load_checkpoint
from bertsmith.training.checkpoints.load import newest_whole as newest_whole
from bertsmith.training.checkpoints.position import Best as Best
from bertsmith.training.checkpoints.position import Position as Position
from bertsmith.training.checkpoints.position import lost_bests as lost_bests
from bertsmith.training.checkpoints.position import step_folders as step_folders
