from __future__ import annotations

import numpy as np
import pytest

from scala_lab.study.api import frame_of
from scala_lab.study.profiles import EMBEDDED, PAPER
from scala_lab.sweep.store import Records
from scala_lab.timing.calibration import WITHIN, Calibration
from scala_lab.timing.model import Compute, Link
from studies import method_scalability, projection, scalability, time_breakdown
from studies._timings import CALIBRATION, RATES, error_factors, heldout_rows, projected_steps, step_rows

OWN = Compute(0.0, 0.0, 0.01, 0.0)
MACHINE = Calibration(
    *(OWN, OWN, {"adamw": 0.0, "lamb": 0.0}, 1000.0, 1.0, 1.0, 2),
    {WITHIN: Link(0.0, 1e6), **{rate: Link(0.0, 1e5) for rate in RATES}},
)
"""Ten milliseconds a row and nothing else, but for 1000 bytes over links."""


def made_up(cells, seconds):
    """Records of step times: seconds(method, batch size, workers) of a step, and a quarter more over any exchange."""
    records = {}
    for cell in cells:
        if cell.labels["link"] == CALIBRATION:
            records[cell.key] = {"status": "finished", "result": MACHINE.to_dict()}
            continue
        result = {"matmul_rate": 1e9, "gradient_bytes": 1000}
        for label, size in cell.labels["sizes"].items():
            own = seconds(label, size, cell.labels["workers"])
            luck = np.exp(0.01 * np.random.default_rng(0).normal(size=6))
            exchange = 0.25 * own * (cell.labels["workers"] > 1) + (cell.labels["link"] != WITHIN)
            values = {"step": own + exchange, "without": own, "exchange": exchange, "flops": 1e6 * size}
            values |= {"samples": size, "tokens": 20 * size, "load micro_batches": 1}
            rows = size / cell.labels["workers"]
            values |= {"load rows": rows, "load tokens": 20 * rows, "load squares": 400 * rows}
            for name, value in values.items():
                result[f"{label}:{name}"] = (value * (luck if name in ("step", "without") else np.ones(6))).tolist()
            result[f"{label}:steps_per_epoch"] = 100
        records[cell.key] = {"status": "finished", "result": result}
    return records


def frame(cells, records):
    return frame_of(cells, Records({}, records))


@pytest.mark.parametrize("profile", [EMBEDDED, PAPER])
def test_timings_are_taken_alone_and_on_the_tasks_of_the_figures(profile):
    for study, task in ((scalability, profile.pair[0]), (method_scalability, profile.pair[-1])):
        cells = study.cells(profile)
        assert all(cell.item.alone for cell in cells)
        assert {cell.labels["task"] for cell in cells} == {task}
        assert {cell.labels["workers"] for cell in cells if cell.labels["link"] != CALIBRATION} == set(profile.workers)
        assert all(spec.machine.workers == 1 and spec.optim.max_steps == 1 for cell in cells for spec in cell.specs)
    assert time_breakdown.cells(profile)[0].item.alone


def test_two_hosts_are_measured_where_workers_are_not_gpus():
    links = {cell.labels["link"] for cell in scalability.cells(EMBEDDED)}
    assert links == {WITHIN, CALIBRATION, *RATES}
    assert {cell.labels["link"] for cell in scalability.cells(PAPER)} == {WITHIN}


def test_scalability_shows_both_batch_sizes_with_and_without_communication():
    cells = scalability.cells(PAPER)
    findings = scalability.analyse(PAPER, frame(cells, made_up(cells, lambda _, size, workers: size / workers)))
    table = findings.tables[0].frame.set_index(["B", "workers"])
    assert len(table) == 12
    assert table.loc[(1024, 32), "speedup"] == pytest.approx(32 / 1.25, rel=0.02)
    assert table.loc[(32, 2), "without communication"] == pytest.approx(100 * 16, rel=0.02)
    assert table.loc[(32, 2), "exposed share"] == pytest.approx(0.2, rel=0.02)
    assert table.loc[(1024, 1), "efficiency"] == 1
    verdicts = {claim.claim.id: claim.verdict for claim in findings.claims}
    assert verdicts == {"C1": "reversed", "C2": "supported"}  # the small batch scales on as well
    throughput = findings.tables[2].frame.set_index(["B", "workers"])
    assert throughput.loc[(1024, 1), "samples/s"] == pytest.approx(1, rel=0.02)
    assert throughput.loc[(1024, 1), "share of matmul"] == pytest.approx(1e6 / 1e9, rel=0.02)


def test_hosts_stand_beside_one_host_but_do_not_decide_claims():
    cells = scalability.cells(EMBEDDED)
    records = made_up(cells, lambda _, size, workers: size / workers)
    findings = scalability.analyse(EMBEDDED, frame(cells, records))
    table = findings.tables[0].frame.set_index(["B", "workers", "link"])
    assert len(table) == 2 * (2 + len(RATES))
    assert table.loc[(32, 2, RATES[0]), "seconds per epoch"] == pytest.approx(100 * (1.25 * 16 + 1), rel=0.02)
    exchange = findings.tables[1].frame.set_index(["B", "link"])
    assert len(exchange) == 2 * (1 + len(RATES))
    assert exchange.loc[(32, "200mbit"), "bytes / rate (s)"] == pytest.approx(8 * 1000 / 200e6)  # each sends 1000 bytes
    assert exchange.loc[(32, "200mbit"), "all-reduce (s)"] == pytest.approx(0.25 * 16 + 1)
    assert np.isnan(exchange.loc[(32, WITHIN), "ratio"])
    assert len(findings.figures) == 2
    assert {claim.verdict for claim in findings.claims} == {"not testable here"}  # two workers decide nothing
    here = [cell for cell in cells if cell.labels["link"] == WITHIN]
    alone = scalability.analyse(EMBEDDED, frame(here, records))
    assert [claim.parts for claim in alone.claims] == [claim.parts for claim in findings.claims]


def test_a_machine_without_hosts_says_so():
    for study in (scalability, method_scalability):
        cells = study.cells(EMBEDDED)
        records = made_up(cells, lambda _, size, workers: size / workers)
        for cell in cells:
            if cell.labels["link"] in RATES:
                records[cell.key]["result"] = {"lack": "only root can"}
        findings = study.analyse(EMBEDDED, frame(cells, records))
        assert any("only root can" in note and "200mbit" in note for note in findings.tables[0].notes)
        assert np.isfinite(findings.tables[0].frame.select_dtypes("number").to_numpy()).all()


@pytest.mark.parametrize("study", [scalability, method_scalability])
def test_cells_between_hosts_alone_are_shown_without_a_line_over_workers(study):
    cells = study.cells(EMBEDDED)
    records = made_up(cells, lambda _, size, workers: size / workers)
    kept = {cell.key: records[cell.key] for cell in cells if cell.labels["link"] in RATES}
    findings = study.analyse(EMBEDDED, frame(cells, kept))
    assert len(findings.tables[0].frame)
    assert "" not in {drawing.name for drawing in findings.figures}
    assert {claim.verdict for claim in findings.claims} == {"not testable here"}


def test_lines_go_on_to_the_papers_workers_by_the_time_model():
    cells = scalability.cells(EMBEDDED)
    done = frame(cells, made_up(cells, lambda _, size, workers: 0.01 * size / workers))
    ahead = projected_steps(EMBEDDED, done).set_index(["label", "workers"])
    assert sorted({workers for _, workers in ahead.index}) == [4, 8, 16, 32]
    large = EMBEDDED.large_batch
    # ten milliseconds a row; two workers on each host, so sums within and across hosts of 1000 bytes at 1 MB/s
    assert ahead.loc[("large batch", 8), "without"] == pytest.approx(0.01 * large / 8)
    exchange = ahead.loc[("large batch", 8), "seconds"] - ahead.loc[("large batch", 8), "without"]
    assert exchange == pytest.approx(1e-3 * (2 * 1 / 2 + 2 * 3 / 4))
    errors = error_factors(heldout_rows(done))
    assert (errors <= ahead["factor"].iloc[0]).mean() >= 0.9
    rows = scalability.figure_rows(timings_of(done), ahead.reset_index())
    line = rows[rows["label"] == f"B = {large}"].set_index("workers")
    assert list(line["measured"]) == [True, True, False, False, False, False]
    assert (line["low"] <= line["value"]).all()
    assert (line["value"] <= line["high"]).all()
    assert line.loc[32, "high"] / line.loc[32, "value"] == pytest.approx(ahead["factor"].iloc[0])


def timings_of(done):
    """The rows that the figure draws: seconds of an epoch on one host."""
    rows = step_rows(done)
    rows = rows.assign(**{name: rows[name] * rows["steps_per_epoch"] for name in ("seconds", "without")})
    return rows[rows["link"] == WITHIN]


def test_nothing_is_projected_where_all_workers_were_timed():
    cells = scalability.cells(PAPER)
    done = frame(cells, made_up(cells, lambda _, size, workers: size / workers))
    assert projected_steps(PAPER, done).empty
    assert len(scalability.analyse(PAPER, done).figures) == 2


def test_scala_with_delay_is_made_of_both_kinds_of_steps():
    cells = method_scalability.cells(EMBEDDED)
    paces = {"small batch": 0.1, "baseline": 1.0, "LAMB": 1.2, "ScaLA without delay": 3.0}
    found = frame(cells, made_up(cells, lambda label, _, workers: paces[label] / workers))
    rows = method_scalability.run_rows(EMBEDDED, step_rows(found))
    medians = rows[rows["link"] == WITHIN].groupby(["label", "workers"])["seconds"].median()
    # t_s = 10 of 12 epochs: five sixths of LAMB's steps and one sixth of those with noise, 100 steps in each epoch
    assert medians["ScaLA", 1] == pytest.approx(1200 * (5 * 1.2 + 3.0) / 6, rel=0.02)
    assert medians["ScaLA, early t_s", 1] == pytest.approx(1200 * (1.2 + 3.0) / 2, rel=0.02)
    assert medians["ScaLA", 2] == pytest.approx(1.25 * medians["ScaLA", 1] / 2, rel=0.02)
    findings = method_scalability.analyse(EMBEDDED, found)
    table = findings.tables[0].frame
    assert list(table.index) == ["small batch", "baseline", "LAMB", "ScaLA", "ScaLA, early t_s", "ScaLA without delay"]
    assert list(table.columns) == ["P = 1", "P = 2", "P = 2, 2 hosts, 200mbit"]
    assert findings.claims[0].verdict == "not testable here"
    assert "2.00x" in findings.found
    assert any("32 workers" in note and "projected" in note for note in findings.tables[0].notes)


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
        "PGA-1 fused:clean forward": [0.1, 0.11, 0.09],
        "PGA-1 fused:adversarial forward": [0.1, 0.11, 0.09],
        "PGA-1 fused:backward": [0.4, 0.44, 0.36],
        "PGA-1 fused:optimizer": [0.05, 0.05, 0.05],
        "PGA-1 fused:step": [0.65, 0.71, 0.59],
        "cpu_share": 0.99,
    }
    frame = frame_of(cells, Records({}, {cells[0].item.id: {"status": "finished", "result": result}}))
    findings = time_breakdown.analyse(EMBEDDED, frame)
    table = findings.tables[0].frame
    assert table.loc["plain", "backward"] == pytest.approx(2)
    assert table.loc["PGA-1 as written", "step"] == pytest.approx(8.5)
    assert table.loc["PGA-1 fused", "step"] == pytest.approx(6.5)
    assert "1.86x" in findings.found  # a fused step over a plain one
    assert np.isnan(table.loc["plain", "inner forward"])
    assert "sum to 100.0% of a step" in " ".join(findings.tables[0].notes)
    assert findings.claims[0].verdict == "supported"
    # a step with a full inner backward, 0.1 more, over a plain one; then as it was taken
    assert [part.estimate.value for part in findings.claims[0].parts] == pytest.approx([3, 2, 1, 2.71, 2.42], rel=0.01)
    shared = time_breakdown.analyse(EMBEDDED, frame.assign(cpu_share=0.4))
    assert shared.claims[0].verdict == "not testable here"
    assert "40% of the time" in shared.claims[0].why


def calibrated(cells):
    """Records of everything that the study of projection needs, a machine that its model describes to the digit."""
    here = [cell for cell in cells if cell.labels["kind"] == projection.HERE]
    fits = [cell for cell in cells if cell.labels["kind"] == projection.PAPER]
    fitted = {cell.key: {"status": "finished", "result": cell.item.compute([])} for cell in fits}
    return made_up(here, lambda _, size, workers: 0.01 * size / workers) | fitted


def test_projection_predicts_what_it_has_not_seen():
    cells = projection.cells(EMBEDDED)
    findings = projection.analyse(EMBEDDED, frame(cells, calibrated(cells)))
    tables = {table.name: table for table in findings.tables}
    here = tables["here"].frame
    silent = here[here["communication"] == "no"]
    assert list(silent["predicted / measured"]) == pytest.approx([1] * len(silent), rel=0.02)
    assert set(here["link"]) == {WITHIN, *RATES}
    assert f"{len(here)} cells" in findings.found
    lines = tables["here-workers"].frame
    assert lines.columns.max() == 1024
    # messages of 1000 bytes cost little: at B = 1024, more workers are always better within a host
    assert any("B = 1024" in note and "1024 workers" in note for note in tables["here-workers"].notes)


def test_projection_names_what_no_model_explains_in_the_papers_tables():
    cells = projection.cells(PAPER)
    findings = projection.analyse(PAPER, frame(cells, calibrated(cells)))
    residuals = findings.tables[0].frame
    assert len(residuals) == 40
    assert (residuals["fitted on"] == "yes").sum() == 20
    named = findings.tables[0].notes[1].split(".")[1]
    assert named.count("BERT-base QQP") == 3
    assert "RoBERTa" not in named
    assert "20 reported cells" in findings.found


@pytest.mark.parametrize("study", [scalability, method_scalability, time_breakdown, projection])
def test_nothing_measured_is_nothing_found(study):
    cells = study.cells(EMBEDDED)
    findings = study.analyse(EMBEDDED, frame_of(cells, Records({}, {})))
    assert not findings.tables
