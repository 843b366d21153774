"""A model of time for this machine, from about a minute of measuring its pieces.

One worker computes made-up batches and updates, then as many as fill the cores compute at once and exchange messages,
and workers on two hosts of this machine exchange messages over a link of a given rate, where that can be had. No step
of a run is timed, so that runs can tell whether the model is right.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec
from scala_lab.timing.hosts import open_hosts
from scala_lab.timing.model import FREE, Compute, Link, Load, Network, StepModel, fit_compute, fit_link

if TYPE_CHECKING:
    from scala_lab.training.distributed import WorkerLauncher


WITHIN = "within a host"
"""Name of the link class between workers of one host; others go by their rate."""
PIECE_SECONDS = 5.0
"""About how long each piece is measured for; there are six, and one for each rate."""


@dataclass(frozen=True)
class Calibration:
    """What was measured, as constants.

    Attributes:
        plain: Computing of a step without noise.
        noise: Computing of a step with noise.
        update: Seconds of an update, by optimizer.
        gradient_bytes: What workers exchange.
        crowding: What computing takes longer by when all cores compute.
        update_crowding: What an update takes longer by then: it is bound by memory, which cores share.
        cores: How many workers fill a host.
        links: By name: `WITHIN`, and the rates of links between hosts.
    """

    plain: Compute
    noise: Compute
    update: Mapping[str, float]
    gradient_bytes: float
    crowding: float
    update_crowding: float
    cores: int
    links: Mapping[str, Link]

    def model(self, link: str = WITHIN, per_host: int | None = None) -> StepModel:
        """A model of time for workers that talk over a link class.

        Args:
            link: Between hosts.
            per_host: Workers on each host; default as many as fill this one, or 1 for a link between hosts.
        """
        if per_host is None:
            per_host = self.cores if link == WITHIN else 1
        network = Network(self.links.get(WITHIN, FREE), self.links.get(link, FREE), per_host)
        factors = {"crowding": self.crowding, "update_crowding": self.update_crowding}
        return StepModel(self.plain, self.noise, self.update, self.gradient_bytes, network, **factors)

    def to_dict(self) -> dict[str, Any]:
        """Plain values and lists, ready for JSON; a bandwidth without limit is None."""
        links = self.links.values()
        return {
            "plain": list(astuple(self.plain)),
            "noise": list(astuple(self.noise)),
            "optimizers": list(self.update),
            "update": list(self.update.values()),
            **{name: getattr(self, name) for name in ("gradient_bytes", "crowding", "update_crowding", "cores")},
            "links": list(self.links),
            "latency": [link.latency for link in links],
            "bandwidth": [link.bandwidth if math.isfinite(link.bandwidth) else None for link in links],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """The calibration that `to_dict` wrote."""
        lines = zip(values["links"], values["latency"], values["bandwidth"], strict=True)
        return cls(
            Compute(*values["plain"]),
            Compute(*values["noise"]),
            dict(zip(values["optimizers"], values["update"], strict=True)),
            values["gradient_bytes"],
            values["crowding"],
            values["update_crowding"],
            int(values["cores"]),
            {name: Link(latency, math.inf if speed is None else speed) for name, latency, speed in lines},
        )


def calibrate(spec: RunSpec, rates: Sequence[str] = (), seconds: float = PIECE_SECONDS) -> Calibration:
    """Measure this machine.

    Args:
        spec: Model, task (for its head and tokens), threads of a worker, device.
        rates: Links between two hosts of this machine to measure as well; see `open_hosts`.
        seconds: About how long each piece is measured for.

    Raises:
        UserError: Rates are given, and this machine cannot have hosts.
    """
    spec = spec.override(workers=1, max_steps=1).resolved()
    threads = spec.machine.threads or 1
    cores = max(1, _places_for_workers(spec) // threads)
    pieces = ["computing", *(["crowd"] if cores > 1 else []), "updates", *(["messages"] if cores > 1 else [])]
    found = _measure(spec.override(workers=cores), pieces, seconds)
    plain, noise = (_compute(found["computing"][kind]) for kind in ("plain", "noise"))
    update = {name: point["alone"] for name, point in found["updates"].items()}
    crowding, update_crowding, links = 1.0, 1.0, {}
    if cores > 1:
        crowding, update_crowding = _crowding(found["crowd"]), _crowding(found["updates"].values())
        links[WITHIN] = _fit(found["messages"], cores)
    for rate in rates:
        with open_hosts(2, rate) as hosts:
            links[rate] = _fit(_measure(spec.override(workers=2), ["messages"], seconds, hosts)["messages"], 2)
    return Calibration(plain, noise, update, float(found["gradient_bytes"]), crowding, update_crowding, cores, links)


def _places_for_workers(spec: RunSpec) -> int:
    """GPUs, or cores."""
    if spec.machine.device == "cuda":
        import torch

        return torch.cuda.device_count() * (spec.machine.threads or 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _measure(
    spec: RunSpec, pieces: list[str], seconds: float, launcher: WorkerLauncher | None = None
) -> dict[str, Any]:
    from scala_lab.training.distributed import run_workers

    spec = spec.resolved()
    with tempfile.TemporaryDirectory(prefix="scala-lab-calibration-") as folder:
        file = Path(folder) / "found.json"
        job = {"spec": spec.to_dict(), "pieces": pieces, "seconds": seconds, "found": str(file)}
        run_workers("scala_lab.timing.calibration_worker", job, spec.machine, launcher=launcher)
        return json.loads(file.read_text())


def _crowding(points: Iterable[Mapping[str, float]]) -> float:
    """What things take longer by when all cores do them: the mean of the logarithms, at least 1."""
    ratios = [math.log(point["seconds"] / point["alone"]) for point in points]
    return max(1.0, math.exp(sum(ratios) / len(ratios)))


def _load(point: Mapping[str, float]) -> Load:
    return Load(**{each.name: point[each.name] for each in fields(Load)})


def _compute(points: Sequence[Mapping[str, float]]) -> Compute:
    return fit_compute([_load(point) for point in points], [point["seconds"] for point in points])


def _fit(points: Sequence[Mapping[str, float]], members: int) -> Link:
    return fit_link([point["bytes"] for point in points], [point["seconds"] for point in points], members)
