from __future__ import annotations

import json
import math

import pytest

from scala_lab.config import RunSpec
from scala_lab.timing import calibration as module
from scala_lab.timing.calibration import WITHIN, Calibration, calibrate
from scala_lab.timing.model import Compute, Link, Load
from tests.tiny import write_rows

MADE_UP = Calibration(
    Compute(1e-3, 1e-3, 1e-4, 1e-5),
    Compute(2e-3, 2e-3, 2e-4, 3e-5, 1e-8),
    {"adamw": 1e-3, "lamb": 2e-3},
    gradient_bytes=1e6,
    crowding=1.2,
    update_crowding=1.5,
    cores=2,
    links={WITHIN: Link(1e-5, math.inf), "200mbit": Link(1e-4, 2.4e7)},
)

pytestmark = pytest.mark.long


def test_a_calibration_survives_json():
    assert Calibration.from_dict(json.loads(json.dumps(MADE_UP.to_dict(), allow_nan=False))) == MADE_UP


def test_workers_apart_talk_over_the_link_between_hosts():
    load = Load(1, 16, 300)
    here, apart = (MADE_UP.model(link) for link in (WITHIN, "200mbit"))
    computing = 1.2 * MADE_UP.plain.seconds(load) + 1.5 * 1e-3
    assert here.step_seconds(load, 2, "adamw") == pytest.approx(computing + 2e-5)
    assert apart.step_seconds(load, 2, "adamw") == pytest.approx(computing + 2e-4 + 1e6 / 2.4e7)
    # two hosts of two workers each: one exchange within, one between
    four = MADE_UP.model("200mbit", per_host=2)
    assert four.step_seconds(load, 4, "adamw") == pytest.approx(computing + 2e-5 + 2e-4 + 1e6 / 2.4e7)


def test_this_machine_can_be_calibrated(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_workers_per_host", lambda spec: 2)
    rows = write_rows(tmp_path / "rows.csv", 60)
    spec = RunSpec.of(task=str(rows), text_columns=("text",), label_column="label", model=str(tiny_bert), threads=1)
    found = calibrate(spec, seconds=0.02)
    assert found.cores == 2
    assert found.crowding >= 1
    assert found.update_crowding >= 1
    assert set(found.links) == {WITHIN}
    assert found.gradient_bytes > 4 * 1000
    assert set(found.update) == {"adamw", "lamb"}
    loads = Load(1, 8, 96, 1152), Load(4, 64, 768, 9216)
    for computing in (found.plain, found.noise):
        assert 0 < computing.seconds(loads[0]) <= computing.seconds(loads[1])
