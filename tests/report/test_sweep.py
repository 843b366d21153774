"""What a sweep leaves: figures with the numbers of pandas' groupby, and best settings chosen on the right rows."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from scala_lab import load_runs
from scala_lab.cli import main
from scala_lab.config import RunSpec
from scala_lab.report.figures.grid import axis_figure, heat_map_figure
from scala_lab.report.sweep import WRITTEN, write_sweep
from scala_lab.sweep.grid import Grid, SweepFolder
from tests.sweep.pretended import pretend

FIXED = RunSpec.of(task="rows.csv", device="cpu", tuning_samples=10, heldout_samples=10)
AXES = {"method": ["lamb", "scala"], "delay": [2, 4], "lr": [0.1, 0.01, 0.001], "batch_size": [32, 64]}


def score(spec: RunSpec, split: str) -> float:
    """A made-up score that looks like chance; what is best on tuning rows is worst elsewhere."""
    if split != "tuning":
        return 1.4 - score(spec, "tuning") + len(split) / 1000
    return float(np.random.default_rng(int(spec.run_id, 16)).uniform(0.5, 0.9))


def scored(spec: RunSpec) -> dict:
    splits = {"dev": True, "tuning": spec.data.tuning_samples, "heldout": spec.data.heldout_samples}
    metrics = {split: {"accuracy": score(spec, split)} for split, kept in splits.items() if kept}
    return {"metrics": metrics, "losses": {split: 1 - values["accuracy"] for split, values in metrics.items()}}


def sweep_of(tmp_path, ending=scored, fixed=FIXED, axes=AXES, seeds=3) -> SweepFolder:
    sweep = SweepFolder(tmp_path / "sweep1").add(Grid.of(fixed, axes, seeds))
    pretend(sweep, ending)
    return sweep


def written(sweep: SweepFolder, name: str) -> pd.DataFrame:
    write_sweep(sweep)
    return pd.read_csv(sweep.folder / name, float_precision="round_trip")


def panels_of(figure) -> dict[str, dict[tuple[str, str], list[str]]]:
    """The texts of each cell by panel, row and column."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for axes in figure.axes:
        if not axes.get_xlabel() or not axes.get_visible():
            continue  # the bar of colours
        across, down = (
            [tick.get_text() for tick in ticks] for ticks in (axes.get_xticklabels(), axes.get_yticklabels())
        )
        cells = found.setdefault(axes.get_title(), {})
        for text in axes.texts:
            x, y = text.get_position()
            cells.setdefault((down[round(y)], across[round(x)]), []).append(text.get_text())
    return found


def test_numbers_of_the_heat_map_are_those_of_groupby(tmp_path):
    sweep = sweep_of(tmp_path)
    runs, _ = write_sweep(sweep)
    keys = ["method", "delay", "batch_size", "lr"]
    groups = runs.assign(score=100 * runs["heldout_accuracy"]).groupby(keys, dropna=False)["score"]
    settings = pd.read_csv(sweep.folder / "settings.csv", float_precision="round_trip")
    assert len(settings) == len(groups) == 2 * 3 * 3
    for key, values in groups:
        same = [
            settings[name.replace("_", " ")].isin([math.nan if pd.isna(one) else one])
            for name, one in zip(keys, key, strict=True)
        ]
        row = settings[np.logical_and.reduce(same)]
        assert len(row) == 1
        assert row["held-out accuracy"].item() == pytest.approx(values.mean(), rel=1e-12)
        half = values.sem() * 4.302652729911275  # Student's t at two degrees of freedom
        assert row["to"].item() - row["held-out accuracy"].item() == pytest.approx(half, rel=1e-9)

    svg = (sweep.folder / "figures" / "heat-map.svg").read_text()
    drawn = Counter(re.findall(r">(\d\d\.\d)</text>", svg))
    assert Counter(f"{mean:.1f}" for mean in groups.mean()) <= drawn  # the bar of colours has numbers too
    halves = Counter(f"{4.302652729911275 * error:.1f}" for error in groups.sem())
    assert Counter(re.findall(r">±(\d+\.\d)</text>", svg)) == halves


def test_each_mean_stands_in_its_own_cell(tmp_path):
    lamb = [
        {"method": "lamb", "delay": None, "lr": lr, "batch_size": b} for lr, b in ((0.1, 64), (0.01, 8), (0.01, 64))
    ]
    scala = [
        {"method": "scala", "delay": 2.0, "lr": lr, "batch_size": b} for lr, b in ((0.1, 8), (0.01, 64), (0.1, 64))
    ]
    counts = {"runs": 3, "diverged": 0, "failed": 0, "chosen": False}
    values = [{"value": 10.0 + n, "low": 9.5 + n, "high": 10.5 + n, **counts} for n in range(6)]
    frame = pd.DataFrame([row | value for row, value in zip([*lamb, *scala], values, strict=True)])
    frame.loc[1, ["value", "low", "high", "diverged"]] = [math.nan, math.nan, math.nan, 3]
    frame.loc[2, ["diverged", "failed"]] = [1, 1]
    frame.loc[3, ["low", "high"]] = math.nan
    for order in (list(range(6)), [5, 3, 1, 0, 2, 4]):
        (figure,) = heat_map_figure(frame.loc[order], "batch_size", "lr", title="t", label="accuracy (%)")
        lamb_axes = next(axes for axes in figure.axes if axes.get_title() == "lamb")
        assert [tick.get_text() for tick in lamb_axes.get_yticklabels()] == ["8", "64"]
        assert [tick.get_text() for tick in lamb_axes.get_xticklabels()] == ["0.01", "0.1"]
        assert panels_of(figure) == {
            "lamb": {
                ("64", "0.1"): ["10.0", "±0.5"],
                ("8", "0.01"): ["diverged"],
                ("64", "0.01"): ["12.0", "±0.5", "1 of 3 diverged", "1 of 3 failed"],
            },
            "scala, delay 2": {
                ("8", "0.1"): ["13.0"],
                ("64", "0.01"): ["14.0", "±0.5"],
                ("64", "0.1"): ["15.0", "±0.5"],
            },
        }
    (figure,) = heat_map_figure(frame.loc[3:], "lr", "batch_size", title="t", label="accuracy (%)")
    assert panels_of(figure)["scala, delay 2"]["0.01", "64"] == ["14.0", "±0.5"]


def test_a_number_can_be_read_on_its_colour(tmp_path):
    """In colour and in grey: ink and ground differ in luminance by at least 4 to 1."""
    frame = pd.DataFrame([{"a": n, "b": 1, "value": float(n)} for n in range(40)]).assign(
        low=math.nan, high=math.nan, runs=1, diverged=0, failed=0, chosen=False
    )
    (figure,) = heat_map_figure(frame, "a", "b", title="t", label="accuracy (%)")

    def luminance(colour) -> float:
        from matplotlib.colors import to_rgb

        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    axes = figure.axes[0]
    boxes = {round(box.get_y() + 0.5): box.get_facecolor() for box in axes.patches}
    for text in axes.texts:
        dark, light = sorted(map(luminance, (text.get_color(), boxes[round(text.get_position()[1])])))
        assert (light + 0.05) / (dark + 0.05) >= 4, text.get_text()


def test_one_axis_is_a_line_with_intervals(tmp_path):
    frame = pd.DataFrame({"lr": [0.1, 0.001, 0.01], "value": [80.0, 70.0, math.nan], "low": [79.0, math.nan, math.nan]})
    frame = frame.assign(
        high=[81.0, math.nan, math.nan], runs=2, diverged=[0, 0, 2], failed=0, chosen=[True, False, False]
    )
    axes = axis_figure(frame, "lr", title="t", label="accuracy (%)").axes[0]
    line = axes.lines[0]
    assert np.asarray(line.get_xdata(), float).tolist() == [0.001, 0.01, 0.1]
    assert np.asarray(line.get_ydata(), float)[[0, 2]].tolist() == [70.0, 80.0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.001", "0.01\n2 of 2 diverged", "0.1"]
    low, high = axes.get_xlim()
    assert low < 0.001 < 0.1 < high
    assert axes.get_xscale() == "log"
    names = pd.DataFrame({"method": ["scala", "lamb"], "value": [80.0, 70.0], "low": 69.0, "high": 81.0})
    axes = axis_figure(names.assign(runs=2, diverged=0, failed=0, chosen=False), "method", title="", label="").axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["scala", "lamb"]


def test_the_best_is_chosen_on_tuning_rows_and_reported_on_held_out_rows(tmp_path):
    sweep = sweep_of(tmp_path)
    best = written(sweep, "best.csv")
    runs = load_runs(sweep.folder)
    keys = ["delay", "lr", "batch_size"]
    assert best["method"].tolist() == ["lamb", "scala"]
    for row in best.to_dict("records"):
        own = runs[runs["method"] == row["method"]].groupby(keys, dropna=False)
        means = own["tuning_accuracy"].mean()
        assert row["tuning accuracy"] == pytest.approx(100 * means.max())
        expected = own["heldout_accuracy"].mean().iloc[means.argmax()]
        assert row["held-out accuracy"] == pytest.approx(100 * expected)
        assert expected < own["heldout_accuracy"].mean().max()
    text = (sweep.folder / "best.md").read_text()
    assert "chosen on tuning rows, reported on held-out rows" in text
    assert "The held-out rows had no part in the choice." in text


@pytest.mark.parametrize(
    ("tuning", "heldout", "chosen", "reported"),
    [
        (10, 0, "tuning", "dev"),
        (0, 10, "dev", "held-out"),
        (0, 0, "dev", "dev"),
    ],
)
def test_without_rows_of_their_own_the_page_says_what_was_used(tmp_path, tuning, heldout, chosen, reported):
    fixed = FIXED.override(tuning_samples=tuning, heldout_samples=heldout)
    sweep = sweep_of(tmp_path, fixed=fixed, axes={"lr": [0.1, 0.01]})
    best = written(sweep, "best.csv")
    assert f"{reported} accuracy" in best.columns
    assert f"{chosen} accuracy" in best.columns
    page = (sweep.folder / "index.html").read_text()
    assert f"chosen on {chosen} rows, reported on {reported} rows" in page
    assert ("Chosen and reported on the same dev rows" in page) == (chosen == reported)
    assert ("--tuning-samples N" in page) == (chosen == reported)


def test_settings_with_a_run_that_did_not_finish_are_not_chosen(tmp_path):
    """The best rate of all diverges with one seed; the next best is chosen. One that has not ended is none either."""

    def ending(spec: RunSpec) -> dict:
        if (spec.optim.lr, spec.seed) == (0.1, 1):
            return {"status": "diverged"}
        if (spec.optim.lr, spec.seed) == (0.2, 2):
            return {}
        metrics = {split: {"accuracy": 0.5 + spec.optim.lr} for split in ("dev", "tuning", "heldout")}
        return {"metrics": metrics}

    sweep = sweep_of(tmp_path, ending, axes={"lr": [0.01, 0.05, 0.1, 0.2]})
    best = written(sweep, "best.csv")
    assert best["lr"].tolist() == [0.05]
    assert best["at the end of"].isna().all(), "0.1 and 0.2 were tried"
    assert "2 of 4 settings have a run that diverged, failed or has not ended" in (sweep.folder / "best.md").read_text()
    settings = pd.read_csv(sweep.folder / "settings.csv")
    assert settings["diverged"].tolist() == [0, 0, 1, 0]
    assert settings["held-out accuracy"].tolist() == pytest.approx([51.0, 55.0, 60.0, 70.0])

    def all_lost(spec: RunSpec) -> dict:
        return {"status": "failed", "error": "no rows", "timing": None}

    sweep = sweep_of(tmp_path / "lost", all_lost, axes={"lr": [0.01, 0.05], "batch_size": [8, 16]})
    assert len(written(sweep, "best.csv")) == 0
    page = (sweep.folder / "index.html").read_text()
    assert "No setting has runs that all finished." in page
    assert "no rows" in page


def test_a_best_value_at_the_end_of_its_axis_is_named(tmp_path):
    def ending(spec: RunSpec) -> dict:
        better = {"lamb": -1, "scala": 1}[spec.recipe.method]
        value = 0.5 + better * spec.optim.lr - abs(spec.batches.batch_size - 16) / 1000
        return {"metrics": {split: {"accuracy": value} for split in ("dev", "tuning", "heldout")}}

    axes = {"method": ["lamb", "scala"], "lr": [0.01, 0.02, 0.03], "batch_size": [8, 16, 32]}
    best = written(sweep_of(tmp_path, ending, axes=axes), "best.csv")
    assert best[["method", "lr", "batch size", "at the end of"]].values.tolist() == [
        ["lamb", 0.01, 16, "lr"],
        ["scala", 0.03, 16, "lr"],
    ]


def test_a_view_chooses_axes_groups_and_metric(tmp_path):
    sweep = sweep_of(tmp_path)
    view = {"rows": "lr", "columns": "delay", "metric": "loss", "best_for": ["batch_size"]}
    sweep = SweepFolder(sweep.folder, sweep.grids, view)
    best = written(sweep, "best.csv")
    assert best["batch size"].tolist() == [32, 64]
    runs = load_runs(sweep.folder)
    means = runs.groupby(["batch_size", "method", "delay", "lr"], dropna=False)["tuning_loss"].mean()
    assert best["tuning loss"].tolist() == pytest.approx([means[32].min(), means[64].min()])
    svg = (sweep.folder / "figures" / "heat-map.svg").read_text()
    assert ">delay</text>" in svg
    assert "batch size 64" in svg


def test_tasks_have_figures_and_best_settings_of_their_own(tmp_path):
    axes = {"task": ["mini-sst2", "mini-stsb"], "lr": [0.1, 0.01], "batch_size": [32, 64]}

    def ending(spec: RunSpec) -> dict:
        name = {"mini-sst2": "accuracy", "mini-stsb": "pearson"}[spec.data.task]
        return {"metrics": {split: {name: score(spec, split)} for split in ("dev", "tuning", "heldout")}}

    sweep = sweep_of(tmp_path, ending, axes=axes)
    best = written(sweep, "best.csv")
    assert best["task"].tolist() == axes["task"]
    runs = load_runs(sweep.folder)
    stsb = runs[runs["task"] == "mini-stsb"].groupby(["lr", "batch_size"])["tuning_pearson"].mean()
    assert best["tuning score"].iloc[1] == pytest.approx(100 * stsb.max())
    assert sorted(file.name for file in (sweep.folder / "figures").glob("*.png")) == ["heat-map-2.png", "heat-map.png"]


def test_tables_in_latex_have_a_cell_for_every_column(tmp_path):
    sweep = sweep_of(tmp_path, fixed=FIXED.override(task="my_rows & 50%.csv"))
    write_sweep(sweep)
    for name in ("best", "settings"):
        lines = (sweep.folder / f"{name}.tex").read_text().splitlines()
        count = len(pd.read_csv(sweep.folder / f"{name}.csv").columns)
        alignment = re.search(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}", "\n".join(lines))[1]
        assert len(alignment) == count
        body = lines[lines.index(r"    \toprule") + 1 : lines.index(r"    \bottomrule")]
        rows = [line for line in body if line.endswith(r"\\")]
        assert len(rows) >= 1 + {"best": 2, "settings": 18}[name]
        for row in rows[-2:]:
            assert len(re.findall(r"(?<!\\)&", row)) == count - 1
        for kind in ("table", "tabular"):
            assert (
                sum(f"\\begin{{{kind}}}" in line for line in lines)
                == sum(f"\\end{{{kind}}}" in line for line in lines)
                == 1
            )


def test_parquet_and_csv_hold_the_frame(tmp_path):
    sweep = sweep_of(tmp_path, axes={"lr": [0.1], "method": ["lamb", "scala"]}, seeds=1)
    runs, _ = write_sweep(sweep)
    pd.testing.assert_frame_equal(pd.read_parquet(sweep.folder / "runs.parquet"), runs)
    read = pd.read_csv(sweep.folder / "runs.csv", float_precision="round_trip")
    assert list(read.columns) == list(runs.columns)
    assert read["dev_accuracy"].tolist() == runs["dev_accuracy"].tolist()


def test_the_page_stands_alone_and_links_to_its_files(tmp_path, capsys):
    sweep = sweep_of(tmp_path)
    write_sweep(sweep)
    folder = sweep.folder
    page = (folder / "index.html").read_text()
    assert not re.findall(r"""(?:src|href)=["']https?:""", page)
    assert "data:image/png;base64," in page
    assert 'name="viewport" content="width=device-width' in page
    links = re.findall(r'href="([^"#]+)"', page)
    assert {"runs.csv", "runs.parquet", "best.csv", "settings.csv", "best.tex", "figures/heat-map.svg"} <= set(links)
    for link in links:
        assert (folder / link).is_file(), link
    assert page.count("scala-lab train --task rows.csv") == 54, "the command of every run"
    assert "Left out for methods that have no such option: delay (lamb)." in page
    assert sorted(path.name for path in folder.iterdir()) == sorted([*WRITTEN, "store", "sweep.json"])

    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    (folder / "index.html").unlink()
    (folder / "figures" / "old.png").write_text("of a figure that is no longer drawn")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"results: {folder}/index.html"
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_one_seed_says_that_there_is_no_interval(tmp_path):
    sweep = sweep_of(tmp_path, axes={"lr": [0.1, 0.01]}, seeds=1)
    best = written(sweep, "best.csv")
    assert best[["from", "to"]].isna().all(axis=None)
    assert "One seed per setting: there is no interval" in (sweep.folder / "index.html").read_text()
    assert (sweep.folder / "figures" / "line.png").is_file()


def test_the_page_fits_a_phone_and_its_tables_sort(browser, tmp_path):
    sweep = sweep_of(tmp_path)
    write_sweep(sweep)
    browser.open(sweep.folder / "index.html", 360, 780)
    assert browser.value("document.scrollingElement.scrollWidth <= innerWidth")
    assert browser.value("document.querySelector('#figure-heat-map img').decode().then(() => true)")
    column = "[...document.querySelectorAll('#table-settings tbody tr')].map(row => Number(row.cells[7].dataset.key))"
    browser.value("document.querySelectorAll('#table-settings thead button')[7].click()")
    sorted_up = browser.value(column)
    assert sorted_up == sorted(sorted_up)
    assert len(set(sorted_up)) > 1
    assert browser.complaints == []
