"""The closing summary of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from scala_lab.training.progress import describe_metrics

if TYPE_CHECKING:
    from scala_lab.training.run_folder import RunResult


def result_console() -> Console:
    """Where results go: as wide as the terminal, or, into a file or a pipe, as wide as the longest line."""
    console = Console()
    return console if console.is_terminal else Console(width=10_000)


def show_result(result: RunResult, already_finished: bool) -> None:
    """Print what a run came to and where it lies."""
    console, record = result_console(), result.record
    spec = result.spec
    if already_finished:
        console.print(f"{result.folder} holds this run already, {result.status}: not trained again", highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("run", f"{record['name']}  ({result.status})")
    if result.status == "diverged":
        why = record.get("error") or f"the loss is not finite at step {record['steps_done']}"
        table.add_row("diverged", f"{why} of {record['steps']}")
    for split, metrics in result.metrics.items():
        table.add_row(split, describe_metrics({split: metrics}).removeprefix(f"{split} "))
    if record.get("best"):
        best = record["best"]
        table.add_row("best epoch", f"{best['epoch']:g}: {describe_metrics(best['metrics'])}")
    if record.get("timing"):
        timing = record["timing"]
        table.add_row(
            "training",
            f"{record['steps_done']} steps of {spec.batches.batch_size} in {timing['train_seconds']:.1f} s, "
            f"{timing['samples_per_second']:,.0f} samples/s, peak rate {record['learning_rate']:.3g}",
        )
        table.add_row("time", _shares(timing["phases"]))
    if record.get("counts", {}).get("skipped_noise"):
        table.add_row("left out", f"{record['counts']['skipped_noise']} noise terms that were not finite")
    if record.get("counts", {}).get("skipped_steps"):
        table.add_row("skipped", f"{record['counts']['skipped_steps']} steps whose gradient overflowed in fp16")
    for file, count in record["skipped_rows"].items():
        table.add_row("malformed", f"{count} rows of {file} were passed over")
    if result.status == "finished":
        table.add_row("checkpoint", str(result.checkpoint))
    console.print(table, highlight=False)


def _shares(phases: dict[str, float]) -> str:
    total = sum(phases.values()) or 1.0
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in phases.items() if seconds / total >= 0.005)
