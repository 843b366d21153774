"""Workers: evaluation counts each row once, torchrun works like our own launcher."""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch.distributed import TCPStore

from scala_lab.cli import main
from scala_lab.config import RunSpec
from scala_lab.data.tokens import Padding
from scala_lab.models.encoder import Encoder
from scala_lab.models.loading import load_classifier
from scala_lab.training import trainer
from scala_lab.training.distributed import World, reserved_port
from scala_lab.training.preparation import prepare
from scala_lab.training.trainer import predict_split
from tests.command_line import own_rows, train_flags
from tests.processes import run
from tests.tiny import write_rows
from tests.training.recipe_runs import ALONE

pytestmark = pytest.mark.long


def test_evaluation_runs_each_row_once_and_to_the_same_bits_on_any_number_of_workers(tiny_bert, tmp_path, monkeypatch):
    rows = write_rows(tmp_path / "rows.csv", 53)
    prepared = prepare(RunSpec.of(**own_rows(rows), model=str(tiny_bert)))
    split = prepared.evals["dev"]
    encoder = Encoder(load_classifier(str(tiny_bert), prepared.task))
    alone = predict_split(encoder, split, 4, Padding(0), ALONE)
    assert alone.shape == (53, 2)
    one_by_one = [
        encoder.predict({k: v for k, v in trainer.collate(split, np.array([row]), Padding(0)).items() if k != "labels"})
        for row in range(53)
    ]
    assert np.allclose(alone, torch.cat(one_by_one).detach().numpy(), atol=1e-5)

    parts, seen = [], []
    original = trainer._predict
    monkeypatch.setattr(trainer, "_predict", lambda e, s, rows, *more: seen.extend(rows) or original(e, s, rows, *more))
    for rank in (2, 1, 0):
        world = World(rank, 3, torch.device("cpu"))
        monkeypatch.setattr(
            World, "gather", lambda self, value: parts.append(value) or (parts[::-1] if self.leads else None)
        )
        together = predict_split(encoder, split, 4, Padding(0), world)
    assert sorted(seen) == list(range(53))
    assert np.array_equal(together, alone)


def test_torchrun_and_our_launcher_give_the_same_run_even_if_a_worker_cannot_clear_up(tiny_bert, tmp_path, monkeypatch):
    rows = write_rows(tmp_path / "rows.csv", 50)
    command = {
        name: train_flags(tiny_bert, rows, epochs=2, batch_size=8, micro_batch=3, workers=workers, out=tmp_path / name)
        for name, workers in (("torchrun", None), ("ours", 2))
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    (tmp_path / "sitecustomize.py").write_text(
        'import atexit, os\nif "RANK" in os.environ:\n    atexit.register(os.abort)\n'  # as a library's thread may
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run([*torchrun, "-m", "scala_lab", *command["torchrun"]])
    assert main(command["ours"]) == 0
    theirs, ours = (json.loads((tmp_path / name / "run.json").read_text()) for name in command)
    assert (theirs["id"], theirs["metrics"]) == (ours["id"], ours["metrics"])
    weights = [(tmp_path / name / "checkpoint" / "model.safetensors").read_bytes() for name in command]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_reserved_port_is_the_stores_and_nobody_elses(host):
    with reserved_port(host) as reserved:
        port = reserved.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        patience = timedelta(minutes=5)
        store = TCPStore("127.0.0.1", port, 1, is_master=True, timeout=patience)
        store.set("word", "here")
        assert TCPStore("127.0.0.1", port, 1, is_master=False, timeout=patience).get("word") == b"here"
