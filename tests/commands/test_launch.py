"""Launching over nodes: the script that is written runs on a real SLURM and leaves what one machine leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from scala_lab.cli import main
from scala_lab.config import RunSpec
from scala_lab.training.train import train
from tests.processes import ROOT, run, started, wait_until
from tests.sweep.slurm import running_slurm
from tests.tiny import write_rows

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def slurm():
    with running_slurm() as slurm:
        yield slurm


def settings(model, rows, **more):
    return {
        **{"task": str(rows), "text_columns": ("text",), "label_column": "label", "model": str(model)},
        **{"method": "lamb", "batch_size": 8, "micro_batch": 3, "lr": 0.001, "threads": 1, "device": "cpu", **more},
    }


def flags(values):
    parts = []
    for name, value in values.items():
        parts += [f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else [str(value)])]
    return parts


def workers_of(run: Path) -> list[int]:
    """Processes that train into a folder under torchrun."""
    workers = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            torchrun = b"torch.distributed.run" in words
        except OSError:  # it has just ended
            continue
        if str(run).encode() in words and not torchrun and b"scala_lab" in words:
            workers.append(int(process.name))
    return workers


def test_a_launched_run_survives_a_killed_worker_and_ends_at_the_same_bits(slurm, tiny_bert, tmp_path, monkeypatch):
    rows = write_rows(tmp_path / "rows.csv", 90)
    values = settings(tiny_bert, rows, epochs=20)
    out, script = tmp_path / "launched", tmp_path / "job.sbatch"
    job = ["--nodes", "2", "--gpus-per-node", "0", "--workers-per-node", "1", "--cpus-per-worker", "1"]
    job += ["--time", "10", "--restarts", "6", "--script", str(script)]
    assert main(["launch", *job, "--", "train", *flags(values), "--out", str(out), "--save-every", "0.2"]) == 0
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with started(["sbatch", "--wait", script], cwd=tmp_path) as waiting, complaining(tmp_path):

        def saved():
            assert not waiting.ended, waiting.describe("the job ended before a worker could be killed")
            return list((out / "state").glob("*")) and workers_of(out)

        wait_until(saved, "the run saves no state", waiting)
        os.kill(workers_of(out)[-1], signal.SIGKILL)
        waiting.succeed()
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished"
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, record["steps"] + 1))
    together = train(RunSpec.of(**values, workers=2), tmp_path / "together")
    assert together.record["id"] == record["id"]
    weights = [(folder / "checkpoint" / "model.safetensors").read_bytes() for folder in (out, tmp_path / "together")]
    assert weights[0] == weights[1]


@contextlib.contextmanager
def complaining(folder: Path):
    """Show what the job said when something goes wrong."""
    try:
        yield
    except AssertionError:
        print("\n".join(log.read_text()[-5000:] for log in folder.glob("scala-lab-*.log")))
        raise


def test_the_script_says_what_was_asked_for(tmp_path, capsys):
    script = tmp_path / "job.sbatch"
    job = ["--nodes", "4", "--gpus-per-node", "8", "--partition", "big", "--options", "account=me", "qos=long"]
    job += ["--setup", "module load cuda", "--script", str(script)]
    assert main(["launch", *job, "--", "train", "--task", "mini-sst2", "--config", str(config(tmp_path))]) == 0
    assert f"sbatch {script}" in capsys.readouterr().out
    text = script.read_text()
    for line in ("nodes=4", "gpus-per-node=8", "partition=big", "account=me", "qos=long", "cpus-per-task=32"):
        assert f"#SBATCH --{line}\n" in text
    assert text.index("module load cuda") < text.index("srun")
    assert "--nnodes=4 --nproc-per-node=8 --max-restarts=3" in text
    assert "--rdzv-conf=read_timeout=600" in text
    assert "--device cuda" in text
    assert "--out runs/" in text
    assert text.rstrip().endswith("--resume")
    run(["bash", "-n", script])


def config(folder: Path) -> Path:
    file = folder / "run with spaces.toml"
    file.write_text("batch_size = 64\n")
    return file


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "launch: give the run after `--`"),
        (["--nodes", "0", "--", "train"], "launch: --nodes must be at least 1, not 0"),
        (["--gpus-per-node", "0", "--", "train"], "launch: --workers-per-node must be at least 1, not 0"),
        (["--", "train", "--workers", "3"], "launch: --workers 3, but 1 nodes have 8"),
        (["--nodes", "9", "--", "train", "--batch-size", "64"], "--batch-size 64 is smaller than --workers 72"),
        (["--", "train", "--bach-size", "3"], "train: unknown flag '--bach-size'"),
    ],
)
def test_mistakes_write_no_script(args, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", *args]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
