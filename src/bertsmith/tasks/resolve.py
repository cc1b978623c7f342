"""The task and the columns that a run is started with: as the user named them, the rest inferred from its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.tasks.kinds.tag import Tag
from bertsmith.tasks.reading.bad_rows import pass_over, raise_at_once
from bertsmith.tasks.reading.files import Form, Row, Source, rows_of
from bertsmith.tasks.reading.infer import AUTO, has_columns, infer
from bertsmith.tasks.reading.table import CLOSELY_READ
from bertsmith.tasks.registry import task_named
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Task

_DEV_SHARE = 0.2


def chosen(task: str, sources: Mapping[str, Source], settings: FinetuneSettings) -> tuple[type[Task], FinetuneSettings]:
    """The task, and the settings with the columns of the training rows and the share of dev rows where no file of them
    is given. Says what was inferred, and why.

    Columns are inferred where `task` is "auto", and where the first training row lacks one that the task needs. Raises
    BertsmithError for a task that is not known, and for rows that leave it open.
    """
    kind = None if task == AUTO else task_named(task)
    settings = _with_share(settings, "dev" in sources)
    kind, settings = _inferred(task, kind, sources, settings)
    if kind.kind == Tag.kind and settings.labels is not None:
        settings = replace(settings, columns=replace(settings.columns, tag_names=settings.labels))
    return kind, settings


def _inferred(
    task: str, kind: type[Task] | None, sources: Mapping[str, Source], settings: FinetuneSettings
) -> tuple[type[Task], FinetuneSettings]:
    train, columns = sources["train"], settings.columns
    report = raise_at_once if settings.skip_bad_rows is None else pass_over
    rows = rows_of(train, Form(columns.header, columns.quoted), report)
    _, first = next(rows, ("", ""))
    if kind is not None and (not isinstance(first, Mapping) or has_columns(first, columns, kind.kind)):
        return kind, settings
    rest = rows if kind is None else islice(rows, CLOSELY_READ)  # the labels of all rows tell the kind
    read: list[Row] = [row for row in (first, *(row for _, row in rest)) if isinstance(row, Mapping)]
    where = str(train) if isinstance(train, str | Path) else "the training rows"
    if not read:
        raise BertsmithError("there are no rows with columns", where, "give rows with a text and a label")
    found = infer(read, columns, where, task)
    for reason in found.reasons:
        say(reason)
    return task_named(found.kind), replace(settings, columns=found.columns)


def _with_share(settings: FinetuneSettings, has_dev: bool) -> FinetuneSettings:
    if not has_dev:
        return settings if settings.dev_share is not None else replace(settings, dev_share=_DEV_SHARE)
    if settings.dev_share is not None:
        what = f"there are dev rows, and a share of {settings.dev_share} of the training rows is to become some"
        raise BertsmithError(what, "--dev-share", "give --dev or --dev-share, not both")
    return settings
