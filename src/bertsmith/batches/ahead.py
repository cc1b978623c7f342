"""Epochs made by all ranks together, the next one ahead of its use: by a process of its own beside every rank.

Every rank draws the instances of its share of the shards and keeps them in the folder that all of them see; the one
that leads makes the index of them. For the first epoch the ranks do this themselves and wait for each other; while an
epoch is trained on, a process beside each of them does it for the next one, and ends when the rank does.
"""

from __future__ import annotations

import time

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, duration, warn
from bertsmith.batches import maker
from bertsmith.batches.epoch_files import EpochFiles, Use
from bertsmith.batches.epoch_index import WINDOW_INSTANCES, EpochIndex, visiting_order
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.maker import Maker, missing_of, pauses
from bertsmith.batches.shares import Share


class Ahead:
    """One rank's part in the epochs of a phase.

    end: the position at which training ends, so that no later epoch is made. in_foreground: the epochs whose instances
    this rank drew, in part or all, while it waited for them.
    """

    def __init__(self, epochs: Epochs, files: EpochFiles, share: Share, end: int) -> None:
        self._epochs, self._files, self._share, self._end = epochs, files, share, end
        self._maker = Maker(epochs, share)
        self._use = Use(files)
        if share.leads:  # for all ranks of the run: they live and die together
            self._use.begin()
        self.in_foreground: list[int] = []

    def index(self, epoch: int) -> EpochIndex:
        """The index of an epoch: waited for if it was asked for before, else made now, together with all ranks."""
        found = self._files.read_index(self._epochs.stream(epoch))
        if found is None and self._maker.is_at(epoch):
            found = self._awaited(epoch)
        if found is None and self._drawn_share(epoch):
            found = self._awaited(epoch)
        if found is None:
            self._drawn_here(epoch)
            found = self._epochs.build(epoch)
        return found

    def started(self, epoch: int, first: int, end: int) -> None:
        """Training has come to an epoch, whose index is there: asks for the next one, and drops what is past.

        first, end: its positions in the run.
        """
        if self._share.leads:
            self._use.forget_instances(before=epoch - 1)
        # Few instances are all held in memory; of many, what is not on disk would be drawn by every process again.
        wanted = [epoch] if end - first > WINDOW_INSTANCES else []
        wanted += [epoch + 1] if end < self._end else []
        for each in wanted:
            if self._share.place is not None and not self._files.are_whole(each):
                self._maker.ask_for(each)

    def close(self, finished: bool) -> None:
        """Ends the process. finished: whether this run needs no instance any more; those on disk are removed then,
        unless another run with the same order reads them."""
        self._maker.close()
        if finished and self._share.leads:
            self._use.forget_instances(before=1 << 62)
        self._use.end()

    def _drawn_here(self, epoch: int) -> None:
        if epoch not in self.in_foreground:
            self.in_foreground.append(epoch)

    def _drawn_share(self, epoch: int) -> bool:
        """Draws what is missing of this rank's share; False, with a warning, if it cannot be kept."""
        shards, stream = self._epochs.shards, self._epochs.stream(epoch)
        missing = missing_of(self._files, epoch, self._share.of(visiting_order(stream, len(shards))))
        with Progress(f"index of epoch {epoch}", sum(shards[each].tokens for each in missing), "token") as progress:
            for shard in missing:
                self._epochs.go_on()
                self._drawn_here(epoch)
                instances = self._epochs.drawn(epoch, shard).instances
                try:
                    self._files.write_shard(epoch, shard, instances)
                except (BertsmithError, OSError) as error:
                    what = f"the instances of epoch {epoch} cannot be kept, so they are held in memory: {error}"
                    warn(what, of_all_ranks=True)
                    return False
                progress.advance(shards[shard].tokens)
        return True

    def _awaited(self, epoch: int) -> EpochIndex | None:
        """The index when it is there; None, with a warning, where it does not come. Raises Closing."""
        files, stream, by_maker = self._files, self._epochs.stream(epoch), self._maker.is_at(epoch)
        seen, there, since, leads = -1, 0, time.monotonic(), self._share.leads
        for pause in pauses():
            self._epochs.go_on()
            late = time.monotonic() - since > maker.PATIENCE_SECONDS
            # The others list the folder only to judge whether it grows: hundreds of ranks may look at one disk.
            if leads or late or seen < 0:
                there = len(files.shards_there(epoch))
            if (found := files.read_index(stream)) is not None:
                return found
            if leads and there == files.shards and not self._maker.is_at(epoch):
                return self._epochs.build(epoch)
            if by_maker and self._maker.why_not:
                return None
            if there > seen:
                seen, since = there, time.monotonic()
            elif late:
                warn(
                    f"the index of epoch {epoch} did not grow for {duration(maker.PATIENCE_SECONDS)} ({there:,} of "
                    f"{files.shards:,} shards are drawn): this rank now makes what is missing"
                )
                return None
            self._epochs.closing.wait(pause)
        raise AssertionError("pauses have no end")
