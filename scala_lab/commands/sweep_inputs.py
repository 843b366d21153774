"""Looking at what a sweep needs from outside before any run is started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scala_lab.runs.measurement import Measurement

if TYPE_CHECKING:
    from scala_lab.runs.cell import Cell
    from scala_lab.runs.store import RunStore


def check_inputs(cells: Sequence[Cell], store: RunStore) -> None:
    """Refuse a sweep whose models or tasks are not to be had: every one of its runs would fail.

    Only runs that are still to be trained count, so that what is finished can be reported anywhere.

    Raises:
        UserError: A model or a task cannot be loaded.
    """
    from scala_lab.models.loading import load_tokenizer
    from scala_lab.tasks.sources import load_task

    todo = store.by_status(cells)
    specs = [what for status in ("missing", "running") for what in todo.get(status, ())]
    runs = [spec for spec in specs if not isinstance(spec, Measurement)]
    for model in dict.fromkeys(spec.encoder.model for spec in runs):
        load_tokenizer(model)
    for data in {spec.data.task: spec.data for spec in runs}.values():
        load_task(data)
