"""Sweeps on a real SLURM: jobs stand in its queue, and what they leave is what this machine's pool leaves."""

from __future__ import annotations

import subprocess
import sys
import threading

import pandas as pd
import pytest
from safetensors.torch import load_file

from scala_lab import load_runs
from scala_lab.cli import main
from scala_lab.errors import UserError
from scala_lab.sweep.cells import Cell, Measurement
from scala_lab.sweep.engine import run_sweep
from scala_lab.sweep.frame import TIMINGS
from scala_lab.sweep.slurm import SlurmCluster, SlurmOptions
from scala_lab.sweep.store import RunStore
from tests.command_line import flags, own_rows
from tests.processes import PATIENCE
from tests.sweep import measures
from tests.sweep.measures import tiny_spec
from tests.sweep.slurm import running_slurm
from tests.sweep.test_engine import Here

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def slurm():
    pytest.importorskip("submitit", reason="the optional package submitit is not installed")
    with running_slurm() as slurm:
        yield slurm


def test_cluster_leaves_what_this_machine_leaves(slurm, inputs, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    alone = tiny_spec(*inputs)
    pair = tiny_spec(*inputs, workers=2)
    diverging = tiny_spec(*inputs, method="plain", lr=1e30)
    trunks = [tiny_spec(*inputs, method="lamb", workers=workers) for workers in (1, 2)]
    cells = [
        *map(Cell, trunks),
        Cell(alone),
        Cell(diverging),
        Cell(pair),
        Cell(Measurement(measures.weight_sum, (alone,))),
        Cell(Measurement(measures.weight_sum, (diverging,))),
        Cell(Measurement(measures.raises, (), {"message": "broken"}, alone=True)),
    ]
    here, there = RunStore(tmp_path / "here"), RunStore(tmp_path / "there")
    queue: set[str] = set()
    over = threading.Event()

    def watch():
        while not over.wait(0.1):
            queue.update(slurm.ask("squeue", "--states=all", "--array", "--noheader", "--format=%i %j"))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        # One worker per node, so that the run with two workers is torchrun's, on two nodes.
        cluster = SlurmCluster(SlurmOptions("tests", minutes=5, workers_per_node=1), poll_seconds=0.5)
        remote = run_sweep(cells, there, cluster)
    finally:
        over.set()
        watching.join()
    local = run_sweep(cells, here, Here())

    jobs = {line.split()[0] for line in queue if line.endswith("scala-lab")}
    assert len(jobs) == 7, queue  # all but the measurement of the diverged run, which is known to fail beforehand
    assert {job for job in jobs if "_" in job}, "runs that ask for the same stand in one array"
    for name in ("status", "metrics", "best", "counts", "steps_done", "learning_rate"):
        assert {key: run[name] for key, run in remote.runs.items() if name in run} == {
            key: run[name] for key, run in local.runs.items() if name in run
        }
    statuses = sorted(run["status"] for run in remote.runs.values())
    assert statuses == ["diverged", *["finished"] * 4]
    for branch, trunk in zip((alone, pair), trunks, strict=True):
        assert remote.runs[branch.run_id]["trunk"] == {"id": trunk.run_id, "step": 3}
    for name in ("status", "result", "error"):
        assert {key: record[name] for key, record in remote.measurements.items()} == {
            key: record[name] for key, record in local.measurements.items()
        }
    for spec in (alone, pair):
        left, right = (load_file(store.run(spec).checkpoint / "model.safetensors") for store in (here, there))
        assert all(tensor.equal(right[name]) for name, tensor in left.items())


def test_a_grid_on_the_cluster_ends_as_on_this_machine(slurm, inputs, tmp_path, monkeypatch, capfd):
    """`scala-lab sweep --executor slurm`: the same table of runs, the same figure, nothing twice."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    model, rows = inputs
    settings = own_rows(rows, model=model, batch_size=16, micro_batch=8, epochs=2, device="cpu", seeds=2)
    grid = ["sweep", "--grid", "method=plain,scala-effective", "lr=0.01,1e30", "delay=1", *flags(**settings)]
    there, here = tmp_path / "there", tmp_path / "here"
    cluster = ["--executor", "slurm", "--partition", "tests", "--minutes", "5"]
    assert main([*grid, *cluster, "--out", str(there)]) == 0
    assert main([*grid, "--processes", "1", "--out", str(here)]) == 0
    left, right = (load_runs(out).drop(columns=list(TIMINGS)) for out in (there, here))
    pd.testing.assert_frame_equal(left, right)
    assert left["status"].value_counts().to_dict() == {"finished": 4, "diverged": 4}
    assert (there / "figures/heat-map.svg").read_bytes() == (here / "figures/heat-map.svg").read_bytes()
    submitted = slurm.ask("squeue", "--states=all", "--array", "--noheader", "--format=%i")
    assert main([*grid, *cluster, "--out", str(there)]) == 0
    assert set(slurm.ask("squeue", "--states=all", "--array", "--noheader", "--format=%i")) <= set(submitted)


def test_job_that_vanishes_fails_its_cell_only(slurm, inputs, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    monkeypatch.setattr("scala_lab.sweep.slurm.GONE_SECONDS", 1.0)
    lethal = Measurement(measures.dies, (), {"marker": str(tmp_path / "marker"), "times": 5})
    healthy = Measurement(measures.random_numbers)
    cluster = SlurmCluster(SlurmOptions("tests", minutes=5), poll_seconds=0.5)
    records = run_sweep([Cell(lethal), Cell(healthy)], RunStore(tmp_path / "store"), cluster)
    assert records.measurements[healthy.id]["status"] == "finished"
    assert records.measurements[lethal.id]["status"] == "failed"
    assert "left the queue without a result" in records.measurements[lethal.id]["error"]
    assert (tmp_path / "marker").stat().st_size == 2  # it was given a second chance


def test_cluster_says_what_it_lacks(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "submitit", sys)  # whether it is installed or not
    with pytest.raises(UserError, match="no sbatch"):
        SlurmCluster(SlurmOptions())


def test_cluster_says_which_package_it_needs():
    hide = "import sys; sys.modules['submitit'] = None"
    code = f"{hide}; from scala_lab.sweep.slurm import *; SlurmCluster(SlurmOptions())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE).stderr
    assert "pip install 'scala-lab[cluster]'" in said
