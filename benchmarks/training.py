"""Training speed and memory beside transformers.Trainer: same model, rows, batch size and threads, in one run.

    python benchmarks/training.py --data-dir GLUE --model MODEL [--threads 2] [--rounds 3]

Both sides train SST-2 at B=1024. The peer pads dynamically (each micro-batch to its longest row) and runs at the
micro-batch size that is fastest for it, found first. Steps of both sides alternate, so that whatever else the
machine does hits both; the ratio is of medians. Without --data-dir and --model: a folder `shared` beside the repository
(or $SCALA_LAB_SHARED) that has them, else the embedded task and encoder.
Memory is the peak of fresh processes at B=1024 and B=8192, at the same micro-batch size.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from inputs import sst2
from memory import peak_memory
from peers import add_peers

from scala_lab import RunSpec
from scala_lab.files import write_json

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Options:
    """Training speed and memory beside transformers.Trainer."""

    data_dir: Path | None = None
    """GLUE folder."""
    model: str | None = None
    """Folder or name of the encoder."""
    threads: int = 2
    """CPU threads of both sides."""
    rounds: int = 3
    """Steps measured on each side."""
    batch_size: int = 1024
    """Rows of an optimizer step."""
    peer_micro_batches: tuple[int, ...] = (8, 16, 32, 64)
    """Micro-batch sizes tried for the peer."""
    memory: bool = True
    """Measure memory too."""


def our_spec(options: Options, **changes: Any) -> RunSpec:
    """The command that both sides run."""
    values = {"method": "lamb", "batch_size": options.batch_size, "train_samples": 8192, "eval_samples": 64}
    where = sst2(options.data_dir, options.model)
    return RunSpec.of(**where, **values, threads=options.threads, **changes).resolved()


class OurSide:
    """scala_lab's loop, one step at a time."""

    def __init__(self, spec: RunSpec) -> None:
        import torch

        from scala_lab.training.loop import Training
        from scala_lab.training.preparation import prepare
        from scala_lab.training.world import World

        self.training = Training(spec, prepare(spec), World(0, 1, torch.device("cpu")))
        self.training.model.train()
        self.done = 0

    def step(self) -> float:
        """Seconds of one optimizer step."""
        started = time.perf_counter()
        self.training.accumulate(self.done)
        self.training.update(self.done)
        self.done += 1
        return time.perf_counter() - started


class PeerSide:
    """transformers.Trainer with dynamic padding."""

    def __init__(self, spec: RunSpec, micro_batch: int) -> None:
        from datasets import Dataset
        from transformers import DataCollatorWithPadding

        from scala_lab.models.loading import load_classifier
        from scala_lab.training.preparation import prepare

        prepared = prepare(spec)
        split, offsets = prepared.train, prepared.train.offsets
        columns = {
            "input_ids": [split.ids[offsets[i] : offsets[i + 1]].tolist() for i in range(len(split))],
            "label": split.labels.tolist(),
        }
        if split.type_ids is not None:
            columns["token_type_ids"] = [
                split.type_ids[offsets[i] : offsets[i + 1]].tolist() for i in range(len(split))
            ]
        self.rows = Dataset.from_dict(columns)
        self.model = load_classifier(spec.encoder.model, prepared.task)
        self.collator = DataCollatorWithPadding(prepared.tokenizer)
        self.micro_batch, self.batch_size = micro_batch, spec.batches.batch_size

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` optimizer steps after one that warms up."""
        from transformers import Trainer, TrainerCallback, TrainingArguments

        seconds: list[float] = []

        class Stopwatch(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                self.started = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                seconds.append(time.perf_counter() - self.started)

        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=self.micro_batch,
                gradient_accumulation_steps=self.batch_size // self.micro_batch,
                max_steps=count + 1,
                learning_rate=1e-4,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                dataloader_num_workers=0,
            )
            Trainer(
                self.model, arguments, data_collator=self.collator, train_dataset=self.rows, callbacks=[Stopwatch()]
            ).train()
        return seconds[1:]


def training_memory(options: Options, batch_size: int) -> int:
    """Peak bytes of a fresh process that trains one epoch."""
    spec = our_spec(options, epochs=1).override(batch_size=batch_size)
    code = (
        "import json, sys; from scala_lab import RunSpec, train;"
        "train(RunSpec.from_dict(json.loads(sys.argv[1])), sys.argv[2])"
    )
    with tempfile.TemporaryDirectory() as folder:
        return peak_memory([sys.executable, "-c", code, json.dumps(spec.to_dict()), f"{folder}/run"])


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/training.json."""
    add_peers()  # before transformers is imported, which looks for them then
    import torch

    torch.set_num_threads(options.threads)
    spec = our_spec(options)
    tried = {size: PeerSide(spec, size).steps(1)[0] for size in options.peer_micro_batches}
    best = min(tried, key=lambda size: tried[size])
    peer, ours = PeerSide(spec, best), OurSide(spec)
    ours.step()
    our_seconds, peer_seconds = [], []
    for _ in range(options.rounds):
        our_seconds.append(ours.step())
        peer_seconds += peer.steps(1)
        our_seconds.append(ours.step())
    size = options.batch_size
    result: dict[str, Any] = {
        "model": Path(spec.encoder.model).name,
        "task": spec.data.task,
        "batch_size": size,
        "threads": options.threads,
        "our_micro_batch": spec.batches.micro_batch,
        "peer_micro_batch": best,
        "our_samples_per_second": [size / value for value in our_seconds],
        "peer_samples_per_second": [size / value for value in peer_seconds],
        "ratio": statistics.median(peer_seconds) / statistics.median(our_seconds),
    }
    if options.memory:
        result["peak_memory_bytes"] = {str(batch): training_memory(options, batch) for batch in (1024, 8192)}
        result["memory_ratio"] = result["peak_memory_bytes"]["8192"] / result["peak_memory_bytes"]["1024"]
    print(json.dumps(result, indent=2))
    write_json(RESULTS / "training.json", result)


if __name__ == "__main__":
    main(tyro.cli(Options))
