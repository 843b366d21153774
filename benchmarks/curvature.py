"""Top Hessian eigenvalues beside PyHessian, hessian-eigenthings and curvlinops; cost of a product; memory.

    python benchmarks/curvature.py [--data-dir GLUE --model MODEL] [--threads 2] [--rounds 2] [--parts eigenthings ...]

An encoder is fine-tuned on SST-2 for one short epoch (kept in the user's cache), then every solver is asked for the top
5 eigenvalues over the same 256 training rows with residuals below 1e-3. Ours and a peer take turns, so that whatever
else the machine does hits both; ratios are of medians. PyHessian is slow: it runs once, and is stopped at ten times our
time. Memory is the peak of fresh processes with 1,024 and 8,192 rows. Each part's findings replace the older ones in
results/curvature.json. Without --data-dir and --model: a folder `shared` beside the repository (or $SCALA_LAB_SHARED)
that has them, else the embedded task and encoder.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from inputs import sst2
from measures import RESULTS, Measure, compared, write_result
from peak_memory import peak_memory
from peers import add_peers
from turns import seconds_of

from scala_lab import RunSpec, train
from scala_lab.data.tokens import cache_folder

Part = Literal["product", "eigenthings", "curvlinops", "pyhessian", "memory"]
GOALS = {"eigenthings": 1.3, "curvlinops": 1.3, "pyhessian": 10.0, "product": 2.8, "memory": 1.1}


@dataclass(frozen=True)
class Options:
    """Curvature beside its peers."""

    data_dir: Path | None = None
    """GLUE folder."""
    model: str | None = None
    """Folder or name of the encoder."""
    threads: int = 2
    """CPU threads of all sides."""
    rounds: int = 2
    """How often ours and a peer take turns."""
    samples: int = 256
    """Rows of the Hessian."""
    parts: tuple[Part, ...] = ("product", "eigenthings", "curvlinops", "pyhessian", "memory")
    """What to measure."""
    memory_products: int = 6
    """Products of each process whose memory is measured."""


def spec_of(options: Options) -> RunSpec:
    """The short run that the checkpoint comes from."""
    run = {"method": "plain", "batch_size": 32, "epochs": 1, "train_samples": 4096, "eval_samples": 256}
    return RunSpec.of(**sst2(options.data_dir, options.model), **run, threads=options.threads).resolved()


def load(checkpoint: Path, spec: RunSpec, samples: int, micro_batch: int = 64) -> tuple[Any, list[dict[str, Any]]]:
    """The model in eval mode, and rows that it was trained on as length-sorted batches."""
    import torch

    from scala_lab.curvature import SampleOptions, load_with_samples

    rows = SampleOptions(samples=samples, micro_batch=micro_batch)
    loaded = load_with_samples(checkpoint, spec.data, rows, torch.device("cpu"))
    return loaded.model.eval(), loaded.sets[0]


def product_cost(question: Any, op: Any, rounds: int) -> dict[str, Any]:
    """A product with retained graphs over a gradient of the same loss, of the same rows, in turns.

    The gradient is the quickest of three: by an operator that keeps nothing, by the model itself on the same shards one
    after another, and by the model itself on whole padded batches. A product has twice a gradient's matrix products,
    but leaves out what the last layer makes of tokens that are not read: it can take less than twice the time.
    """
    import torch

    from scala_lab.curvature import HessianOperator
    from scala_lab.curvature.operator import cut_batch

    parameters = [parameter for parameter in question.model.parameters() if parameter.requires_grad]

    def by_the_model(batches: list[dict[str, Any]]) -> None:
        for batch in batches:
            torch.autograd.grad(question.model(**batch).loss, parameters, allow_unused=True)

    vector = torch.randn(op.space.touched_size, generator=torch.Generator().manual_seed(0))
    shards = [shard for batch in question.batches for shard in cut_batch(batch)]
    sides: dict[str, Callable[[], Any]] = {
        "product": lambda: op.multiply(vector),
        "by the operator": HessianOperator(question.model, question.batches, budget=0).gradient,
        "by the model": lambda: by_the_model(shards),
        "by the model, padded": lambda: by_the_model(question.batches),
    }
    turns = [{name: seconds_of(side) for name, side in sides.items()} for _ in range(1 + 3 * rounds)][1:]
    seconds = {name: [turn[name] for turn in turns] for name in sides}
    product = seconds.pop("product")
    quickest = min(seconds, key=lambda name: statistics.median(seconds[name]))
    return {
        "product_seconds": product,
        "gradient_seconds": seconds[quickest],
        "gradient_seconds_by_way": seconds,
        "ratio": statistics.median(product) / statistics.median(seconds[quickest]),
    }


def in_turns(question: Any, op: Any, peer: Any, rounds: int) -> dict[str, Any]:
    """Ours and a peer, one after the other, `rounds` times."""
    from peers.eigensolvers import ours

    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(ours(question))
        theirs.append(peer.solve())
        print(f"  ours {mine[-1].seconds:.1f} s, {peer.name} {theirs[-1].seconds:.1f} s", flush=True)
    ratio = statistics.median(answer.seconds for answer in theirs) / statistics.median(
        answer.seconds for answer in mine
    )
    return {"ours": _record(mine, op), "peer": _record(theirs, op), "peer_name": peer.name, "ratio": ratio}


def against_pyhessian(question: Any, op: Any) -> dict[str, Any]:
    """Ours before and after one run of PyHessian, which is stopped at ten times the first of ours."""
    from peers.eigensolvers import PyHessianPower, ours

    before = ours(question)
    theirs = PyHessianPower(question, op).solve(stop_after=1.1 * GOALS["pyhessian"] * before.seconds)
    mine = [before, ours(question)]
    ratio = theirs.seconds / statistics.median(answer.seconds for answer in mine)
    return {
        "ours": _record(mine, op),
        "peer": _record([theirs], op),
        "peer_name": "PyHessian",
        "stopped": theirs.vectors is None,
        "ratio": ratio,
    }


def _record(answers: list[Any], op: Any) -> dict[str, Any]:
    """Times of all rounds; of the last one, which repeats the others exactly, what was found."""
    last = answers[-1]
    return {
        "seconds": [answer.seconds for answer in answers],
        "products": last.products,
        "eigenvalues": last.eigenvalues.tolist(),
        "measured_residuals": last.residuals(op),
    }


def solver_memory(checkpoint: Path, spec: RunSpec, options: Options, samples: int, of: str) -> int:
    """Peak resident bytes of a fresh process: `scala-lab sharpness`, or an operator and a solver alone."""
    data = ["--task", spec.data.task, *(["--data-dir", str(spec.data.data_dir)] if spec.data.data_dir else [])]
    limits = ["--samples", str(samples), "--max-products", str(options.memory_products)]
    if of == "command":
        command = [sys.executable, "-m", "scala_lab", "sharpness", str(checkpoint), *data, *limits]
        command += ["--top-k", "5", "--threads", str(options.threads)]
    else:
        ask = json.dumps([str(checkpoint), spec.to_dict(), samples, options.memory_products, options.threads])
        command = [sys.executable, __file__, "--solve-only", ask]
    return peak_memory(command, fine=(0, 1))  # 1: not converged, as few products are asked for


def solve_only(ask: str) -> None:
    """What a process does whose memory is measured without the command around it."""
    import torch

    from scala_lab.curvature import HessianOperator, top_eigenpairs

    checkpoint, spec, samples, products, threads = json.loads(ask)
    torch.set_num_threads(threads)
    model, batches = load(Path(checkpoint), RunSpec.from_dict(spec), samples)
    top_eigenpairs(HessianOperator(model, batches), 5, max_products=products)


def memory(checkpoint: Path, spec: RunSpec, options: Options) -> dict[str, Any]:
    """Peaks with many rows over peaks with few."""
    found: dict[str, Any] = {}
    every_row = spec.override(train_samples=None)
    for of in ("operator", "command"):
        peaks = {rows: solver_memory(checkpoint, every_row, options, rows, of) for rows in (1024, 8192)}
        found[of] = {"peak_bytes": peaks, "ratio": peaks[8192] / peaks[1024]}
        print(f"  {of}: {peaks[1024] / 1e9:.2f} GB, {peaks[8192] / 1e9:.2f} GB", flush=True)
    return {**found, "products": options.memory_products, "ratio": max(entry["ratio"] for entry in found.values())}


def measures_of(parts: dict[str, Any]) -> list[Measure]:
    """Each part against its goal."""
    found = []
    for name, part in parts.items():
        if "peer_name" in part:
            found.append(_against_peer(part, GOALS[name]))
        elif name == "product":
            sides = part["product_seconds"], part["gradient_seconds"]
            title = "Hessian product over gradient"
            goals: dict[str, Any] = {"bound": "at most", "goal": GOALS[name]}
            found.append(compared(title, *sides, "s", "ours over peer", "gradient", **goals))
        else:
            for of in ("operator", "command"):
                few, many = (size / 1e9 for size in part[of]["peak_bytes"].values())
                title, goals = f"peak memory with 8,192 rows, {of}", {"bound": "at most", "goal": GOALS[name]}
                found.append(compared(title, [many], [few], "GB", "ours over peer", "1,024 rows", **goals))
    return found


def _against_peer(part: dict[str, Any], goal: float) -> Measure:
    """Seconds to the top 5 eigenvalues, with the largest residual that each side ended with."""
    residuals = [max(part[side]["measured_residuals"], default=None) for side in ("ours", "peer")]
    ours, peer = ("stopped" if residual is None else f"residual {residual:.1e}" for residual in residuals)
    sides = part["ours"]["seconds"], part["peer"]["seconds"]
    title, peer_name = f"top 5 Hessian eigenvalues, {ours}", f"{part['peer_name']}, {peer}"
    return compared(title, *sides, "s", "peer over ours", peer_name, goal=goal)


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/curvature.json."""
    import torch
    from peers.eigensolvers import CurvlinopsEigsh, EigenthingsLanczos, Question

    from scala_lab.curvature import HessianOperator
    from scala_lab.machine import describe_environment

    add_peers()
    spec = spec_of(options)
    checkpoint = train(spec, cache_folder() / "benchmarks" / spec.name, resume=True, progress=True).folder
    torch.set_num_threads(options.threads)
    model, batches = load(checkpoint, spec, options.samples)
    question, op = Question(model, batches), HessianOperator(model, batches)
    measure: dict[str, Callable[[], dict[str, Any]]] = {
        "product": lambda: product_cost(question, op, options.rounds),
        "eigenthings": lambda: in_turns(question, op, EigenthingsLanczos(question, op), options.rounds),
        "curvlinops": lambda: in_turns(question, op, CurvlinopsEigsh(question), options.rounds),
        "pyhessian": lambda: against_pyhessian(question, op),
        "memory": lambda: memory(checkpoint, spec, options),
    }
    about = {
        "model": Path(spec.encoder.model).name,
        "task": spec.data.task,
        "samples": options.samples,
        "threads": options.threads,
        "environment": describe_environment(),
    }
    present = RESULTS / "curvature.json"
    parts = json.loads(present.read_text())["details"] if present.exists() else {}
    for name in measure:
        if name in options.parts:
            print(name, flush=True)
            parts[name] = {**measure[name](), **about}
            parts = {key: parts[key] for key in measure if key in parts}
            settings = {"samples": options.samples, "threads": options.threads, "task": spec.data.task}
            write_result("curvature", "Curvature", measures_of(parts), settings, parts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--solve-only"]:
        solve_only(sys.argv[2])
    else:
        main(tyro.cli(Options, description=__doc__))
