"""Training speed and memory beside transformers.Trainer: same model, rows, batch size and threads, in one run.

    python benchmarks/training.py [--data-dir GLUE --model MODEL] [--threads 2] [--rounds 3] [--no-memory]

SST-2 three times: at B=1024 and B=32 against dynamic padding (each micro-batch to its longest row), and at B=1024
against padding to 128 tokens, the default of run_glue. The peer runs at the micro-batch size that is fastest for it,
found first, with its default optimizer; ours are LAMB at B=1024 and AdamW at B=32. Steps of both sides take turns; the
ratio is of medians. Padded to 128 a step of the peer takes a minute, so there its batches are a quarter as large: time
is proportional to rows, and what is left of it, an optimizer step for fewer rows, is a hundredth.

Operations per second are 6 x parameters of the layers x real tokens, beside bare products of matrices of the same
shapes. Of the last layer only keys and values are computed for all tokens, so that the limit is above 1. Memory is the
peak of fresh processes at B=1024 and B=8192, at the same micro-batch size.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from typing import Any

import tyro
from inputs import Inputs
from measures import Measure, compared, write_result
from our_side import OurSide
from peak_memory import peak_memory
from peers import add_peers
from turns import in_turns

from scala_lab import RunSpec


@dataclass(frozen=True)
class Options:
    """Training speed and memory beside transformers.Trainer."""

    inputs: tyro.conf.OmitArgPrefixes[Inputs] = field(default_factory=Inputs)
    threads: int = 2
    """CPU threads of both sides."""
    rounds: int = 3
    """Turns of each side at the large batch size; at the small one there are ten times as many."""
    batch_size: int = 1024
    """Rows of a large step."""
    small_batch_size: int = 32
    """Rows of a small step."""
    peer_micro_batches: tuple[int, ...] = (8, 16, 32, 64)
    """Micro-batch sizes tried for the peer."""
    memory: bool = True
    """Measure memory too."""


def our_spec(options: Options, batch_size: int, method: str = "lamb", **changes: Any) -> RunSpec:
    """The run that both sides train."""
    values = {"method": method, "batch_size": batch_size, "train_samples": 8192, "eval_samples": 64}
    return RunSpec.of(**options.inputs.of("sst2"), **values, threads=options.threads, **changes).resolved()


def against_trainer(
    options: Options, spec: RunSpec, padding: Any, rounds: int, peer_rows: int, goal: float
) -> tuple[Measure, dict[str, Any]]:
    """Samples per second of both, and what explains them."""
    from peers.trainer import TrainerSide

    peer_spec = spec.override(batch_size=peer_rows)
    tried = {}
    for size in [size for size in options.peer_micro_batches if size <= peer_rows]:
        trial = spec.override(batch_size=max(size, min(peer_rows, 64 if padding == "max length" else 256)))
        tried[size] = TrainerSide(trial, size, padding).steps(1)[0] / trial.batches.batch_size
    best = min(tried, key=lambda size: tried[size])
    peer, ours = TrainerSide(peer_spec, best, padding), OurSide(spec)
    ours.step(0)
    seconds = in_turns(
        {"ours": lambda number: ours.step(1 + number), "peer": lambda _: peer.steps(1)[0]}, rounds, warm_up=0
    )
    size = spec.batches.batch_size
    measure = compared(
        f"training at B={size:,}, peer pads {'each micro-batch' if padding == 'dynamic' else 'to 128'}",
        [size / value for value in seconds["ours"]],
        [peer_rows / value for value in seconds["peer"]],
        "samples/s",
        "ours over peer",
        "transformers.Trainer",
        goal=goal,
    )
    about = {"our_micro_batch": spec.batches.micro_batch, "peer_micro_batch": best, "peer_rows_of_a_step": peer_rows}
    return measure, {**about, "peer_seconds_per_sample_by_micro_batch": tried, "seconds": seconds}


def against_matmuls(options: Options, spec: RunSpec) -> tuple[Measure, dict[str, Any]]:
    """Operations per second on real tokens, beside bare products in the shapes of the same micro-batches."""
    from matmuls import BareMatmuls, token_layers, token_parameters

    side = OurSide(spec)
    plan, model = side.training.plan, side.training.model
    layers, parameters = token_layers(model), token_parameters(model)
    side.step(0)
    ours, bare, padded_share = [], [], []
    for number in range(1, 1 + options.rounds):
        rows = plan.global_batch(number)
        parts = plan.deal(rows)
        padded = [int(len(part) * plan.lengths[part].max()) for part in parts]
        matmuls, real = BareMatmuls(layers, padded), int(plan.lengths[rows].sum())
        before = matmuls.rate()
        seconds = in_turns({"step": lambda _, number=number: side.step(number)}, 1, warm_up=0)["step"][0]
        bare += [before, matmuls.rate()]
        ours.append(6.0 * parameters * real / seconds)
        padded_share.append(real / sum(padded))
    measure = compared(
        f"operations on real tokens at B={spec.batches.batch_size:,}",
        [value / 1e9 for value in ours],
        [value / 1e9 for value in bare],
        "GFLOP/s",
        "ours over peer",
        "bare matmuls",
        goal=0.6,
        limit=parameters / (parameters - needless_parameters(model.config, parameters)),
    )
    return measure, {"layer_parameters": parameters, "real_over_padded_tokens": padded_share}


def needless_parameters(config: Any, parameters: int) -> float:
    """Parameters of the last layer that a classifier needs for its first token only: all but keys and values."""
    return parameters / config.num_hidden_layers - 2 * config.hidden_size**2


def training_memory(options: Options, batch_size: int) -> int:
    """Peak bytes of a fresh process that trains one epoch."""
    spec = our_spec(options, batch_size, epochs=1)
    code = (
        "import json, sys; from scala_lab import RunSpec, train;"
        "train(RunSpec.from_dict(json.loads(sys.argv[1])), sys.argv[2])"
    )
    with tempfile.TemporaryDirectory() as folder:
        return peak_memory([sys.executable, "-c", code, json.dumps(spec.to_dict()), f"{folder}/run"])


def memory_growth(options: Options) -> Measure:
    """Peak at eight times the batch size over the peak at the batch size."""
    few, many = (training_memory(options, size) / 1e9 for size in (options.batch_size, 8 * options.batch_size))
    name = f"peak memory at B={8 * options.batch_size:,}"
    return compared(name, [many], [few], "GB", "ours over peer", f"B={options.batch_size:,}", bound="at most", goal=1.1)


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/training.json."""
    add_peers()  # before transformers is imported, which looks for them then
    large = our_spec(options, options.batch_size)
    small = our_spec(options, options.small_batch_size, method="plain")
    size, quarter = options.batch_size, options.batch_size // 4
    parts = {
        "large": lambda: against_trainer(options, large, "dynamic", options.rounds, size, goal=2.5),
        "small": lambda: against_trainer(
            options, small, "dynamic", 10 * options.rounds, options.small_batch_size, goal=1.5
        ),
        "padded": lambda: against_trainer(options, large, "max length", options.rounds, quarter, goal=10.0),
        "matmuls": lambda: against_matmuls(options, large),
    }
    found, details = [], {}
    for name, measure in parts.items():
        print(name, flush=True)
        one, details[name] = measure()
        found.append(one)
    if options.memory:
        found.append(memory_growth(options))
    settings = {**asdict(options), "task": large.data.task, "model": large.encoder.model.rpartition("/")[2]}
    write_result("training", "Training speed", found, settings, details)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
