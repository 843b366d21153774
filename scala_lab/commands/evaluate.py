"""`scala-lab evaluate`: metrics and predictions of any checkpoint."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from scala_lab.cli import check_checkpoints, check_new_files, result_console
from scala_lab.config import BatchSpec, DataSpec, RunSpec
from scala_lab.errors import UserError, check_at_least
from scala_lab.machine import default_threads, pick_device


@dataclass(frozen=True)
class Evaluate:
    """Metrics, and on request predictions, of checkpoints on a task's evaluation rows.

    Without --task the rows are those that the first run folder was trained and evaluated on.

        scala-lab evaluate runs/first
        scala-lab evaluate runs/a runs/b --task sst2 --data-dir glue --predictions predictions.csv
    """

    checkpoints: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, or folders that hold config.json and model.safetensors."""
    data: DataSpec = field(default_factory=DataSpec)
    predictions: Path | None = None
    """Write one line per checkpoint and row: label, prediction, outputs. CSV, or JSON lines by the ending .jsonl."""
    json_: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Write the metrics as JSON."""
    micro_batch: int = 64
    """Rows that run at once."""
    threads: int = 0
    """CPU threads; 0 for as many as OMP_NUM_THREADS says, else all cores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is one."""


def run(options: Evaluate) -> int:
    """Evaluate every checkpoint, print a table, and write the files that were requested."""
    _check(options)
    import torch

    from scala_lab.files import write_json, write_text

    torch.set_num_threads(options.threads or default_threads())
    results: list[dict[str, Any]] = []
    predictions: list[dict[str, Any]] = []
    for checkpoint in options.checkpoints:
        metrics, records = _evaluate(options, checkpoint)
        results.append({"checkpoint": str(checkpoint), "task": options.data.task, "metrics": metrics})
        predictions += records
    columns = [(split, name) for split, values in results[0]["metrics"].items() for name in values]
    table = Table("checkpoint", *(f"{split} {name}" for split, name in columns))
    for result in results:
        table.add_row(result["checkpoint"], *(f"{result['metrics'][split][name]:.4f}" for split, name in columns))
    result_console().print(table)
    if options.json_ is not None:
        write_json(options.json_, results)
    if options.predictions is not None:
        if options.predictions.suffix == ".jsonl":
            text = "".join(json.dumps(record) + "\n" for record in predictions)
        else:
            import pandas

            text = pandas.DataFrame(predictions).to_csv(index=False)
        write_text(options.predictions, text)
        print(f"predictions: {options.predictions}", file=sys.stderr)
    return 0


def _check(options: Evaluate) -> None:
    """Refuse what would fail only after minutes of evaluation."""
    check_checkpoints(options.checkpoints)
    RunSpec(data=options.data, batches=BatchSpec(micro_batch=options.micro_batch)).resolved()
    check_at_least(0, threads=options.threads)
    if options.predictions is not None and options.predictions == options.json_:
        raise UserError(f"--predictions and --json must be different files, not both {options.json_}")
    check_new_files(options.predictions, options.json_)


def _evaluate(options: Evaluate, checkpoint: Path) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """Return a checkpoint's metrics by split, and a record of each row's prediction."""
    from scala_lab.data.tasks import compute_metrics, predictions
    from scala_lab.models.loading import load_classifier
    from scala_lab.training.distributed import World
    from scala_lab.training.preparation import admit_model, prepare_data
    from scala_lab.training.trainer import predict_split

    name, world = str(checkpoint), World(0, 1, pick_device(options.device))
    prepared = prepare_data(options.data, name)
    model = load_classifier(name, prepared.task, new_head=False, label_names=options.data.label_names)
    admission = admit_model(model, prepared, name, use="predict")
    model.to(world.device)  # type: ignore[arg-type]
    encoder, names = admission.encoder(model), prepared.task.labels
    metrics, records = {}, []
    for split_name, split in prepared.splits.items():
        if split_name == "train":
            continue
        logits = predict_split(encoder, split, options.micro_batch, admission.padding, world)
        assert logits is not None
        metrics[split_name] = compute_metrics(prepared.task, logits, split.labels)
        predicted = predictions(prepared.task, logits)
        for row, pair in enumerate(zip(split.labels, predicted, strict=True)):
            label, prediction = (names[int(value)] if names else float(value) for value in pair)
            record = {"checkpoint": name, "split": split_name, "row": row, "label": label, "prediction": prediction}
            records.append(record | {f"output_{column}": float(value) for column, value in enumerate(logits[row])})
    return metrics, records
