from __future__ import annotations

import numpy as np
import pytest

from scala_lab.runs.records import Records
from scala_lab.study.frame import frame_of
from scala_lab.study.profiles import EMBEDDED, PAPER
from studies import method_scalability, projection, scalability, time_breakdown


def made_up(cells, seconds):
    """Records of step times: seconds(cell's labels) of a step, a quarter of it communication beyond one worker."""
    records = {}
    for cell in cells:
        whole = seconds(cell.labels)
        steps = (whole * np.exp(0.01 * np.random.default_rng(0).normal(size=6))).tolist()
        records[cell.what.id] = {
            "status": "finished",
            "result": {
                "step_seconds": whole,
                "step_seconds_of": steps,
                "all_reduce_seconds": 0.25 * whole * (cell.labels["workers"] > 1),
                "steps_per_epoch": 100,
            },
        }
    return frame_of(cells, Records({}, records))


@pytest.mark.parametrize("profile", [EMBEDDED, PAPER])
def test_timings_are_taken_alone_and_on_the_tasks_of_the_figures(profile):
    for study, task in ((scalability, profile.pair[0]), (method_scalability, profile.pair[1])):
        cells = study.cells(profile)
        assert all(cell.what.alone for cell in cells)
        assert {cell.labels["task"] for cell in cells} == {task}
        assert {cell.labels["workers"] for cell in cells} == set(profile.workers)
        assert all(spec.machine.workers == 1 and spec.optim.max_steps == 1 for cell in cells for spec in cell.specs)
    assert time_breakdown.cells(profile)[0].what.alone


def test_scalability_shows_both_batch_sizes_with_and_without_communication():
    cells = scalability.cells(PAPER)

    def seconds(labels):
        useful = labels["batch_size"] / labels["workers"]
        return useful + (8 if labels["workers"] > 1 else 0)

    findings = scalability.analyse(PAPER, made_up(cells, seconds))
    table = findings.tables[0].frame.set_index(["B", "workers"])
    assert len(table) == 12
    assert table.loc[(1024, 32), "speedup"] == pytest.approx(1024 / (32 + 8), rel=0.02)
    assert table.loc[(32, 2), "without communication"] == pytest.approx(0.75 * 100 * 24, rel=0.02)
    assert table.loc[(1024, 1), "efficiency"] == 1
    verdicts = {claim.claim.id: claim.verdict for claim in findings.claims}
    assert verdicts["C2"] == "reproduced"
    assert verdicts["C1"] != "not run"


def test_two_workers_decide_nothing():
    findings = scalability.analyse(EMBEDDED, made_up(scalability.cells(EMBEDDED), lambda labels: 1 / labels["workers"]))
    assert {claim.verdict for claim in findings.claims} == {"inconclusive"}


def test_scala_with_delay_is_made_of_both_kinds_of_steps():
    cells = method_scalability.cells(EMBEDDED)
    paces = {"small batch": 0.1, "baseline": 1.0, "LAMB": 1.2, "ScaLA without delay": 3.0}
    frame = made_up(cells, lambda labels: paces[labels["method"]] / labels["workers"])
    rows = method_scalability.run_rows(frame, epochs=6)
    medians = rows.groupby(["label", "workers"])["seconds"].median()
    # delay 5 of 6 epochs: five sixths of LAMB's steps and one sixth of those with noise, 100 steps in each epoch
    assert medians["ScaLA", 1] == pytest.approx(600 * (5 * 1.2 + 3.0) / 6, rel=0.02)
    assert medians["ScaLA", 2] == pytest.approx(medians["ScaLA", 1] / 2, rel=0.02)
    findings = method_scalability.analyse(EMBEDDED, frame)
    assert list(findings.tables[0].frame.index) == [
        "small batch",
        "baseline",
        "LAMB",
        "ScaLA",
        "ScaLA without delay",
    ]
    assert findings.claims[0].verdict == "inconclusive"
    assert "2.00x" in findings.found


def test_breakdown_is_in_units_of_a_plain_forward_pass():
    cells = time_breakdown.cells(EMBEDDED)
    result = {
        "plain:clean forward": [0.1, 0.11, 0.09],
        "plain:backward": [0.2, 0.22, 0.18],
        "plain:optimizer": [0.05, 0.05, 0.05],
        "plain:step": [0.35, 0.38, 0.32],
        "PGA-1:clean forward": [0.1, 0.11, 0.09],
        "PGA-1:inner forward": [0.1, 0.11, 0.09],
        "PGA-1:inner backward": [0.1, 0.11, 0.09],
        "PGA-1:adversarial forward": [0.1, 0.11, 0.09],
        "PGA-1:backward": [0.4, 0.44, 0.36],
        "PGA-1:optimizer": [0.05, 0.05, 0.05],
        "PGA-1:step": [0.85, 0.93, 0.77],
        "cpu_share": 0.99,
    }
    frame = frame_of(cells, Records({}, {cells[0].what.id: {"status": "finished", "result": result}}))
    findings = time_breakdown.analyse(EMBEDDED, frame)
    table = findings.tables[0].frame
    assert table.loc["plain", "backward"] == pytest.approx(2)
    assert table.loc["PGA-1", "step"] == pytest.approx(8.5)
    assert np.isnan(table.loc["plain", "inner forward"])
    assert findings.claims[0].verdict == "reproduced"
    assert [part.estimate.value for part in findings.claims[0].parts] == pytest.approx([3, 2, 1, 2.42], rel=0.01)
    shared = time_breakdown.analyse(EMBEDDED, frame.assign(cpu_share=0.4))
    assert len(shared.tables[0].notes) == len(findings.tables[0].notes) + 1
    assert "40%" in shared.tables[0].notes[-1]


def test_projection_fits_both_models_of_the_paper():
    cells = projection.cells(EMBEDDED)
    records = {cell.what.id: {"status": "finished", "result": cell.what.compute([])} for cell in cells}
    findings = projection.analyse(EMBEDDED, frame_of(cells, Records({}, records)))
    residuals = findings.tables[0].frame
    assert len(residuals) == 40
    assert "BERT-base QQP" in findings.tables[0].notes[1]
    assert "RoBERTa" not in findings.tables[0].notes[1]
    assert "40 reported cells" in findings.found


@pytest.mark.parametrize("study", [scalability, method_scalability, time_breakdown, projection])
def test_nothing_measured_is_nothing_found(study):
    cells = study.cells(EMBEDDED)
    findings = study.analyse(EMBEDDED, frame_of(cells, Records({}, {})))
    assert not findings.tables
