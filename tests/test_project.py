"""What the project's files promise one another."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from scala_lab.commands.doctor import REQUIRED

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9_.-]+", requirement)[0].lower()


def test_every_dependency_is_pinned(project):
    pins = {name_of(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    declared = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    assert {name_of(requirement) for requirement in declared} <= pins


def test_doctor_looks_for_what_the_project_declares(project):
    assert set(REQUIRED) == {name_of(text) for text in project["dependencies"] if "python_version" not in text}


def test_set_up_reads_the_torch_pin_from_one_plain_line():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    assert len(pins) == 1
    assert ";" not in pins[0]


def test_no_project_file_names_a_host_or_an_index():
    for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run"):
        text = (ROOT / name).read_text()
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host", text), name


def test_ci_entry_is_executable():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_readme_has_the_measured_effects_of_lambs_groups():
    """Every arm on every task: its difference from AdamW with the interval, and its training loss."""
    text = (ROOT / "README.md").read_text()
    tables = [json.loads(file.read_text())["arms"] for file in sorted(RESULTS.glob("lamb_groups_*.json"))]
    assert len(tables) == 3
    for arm in (arm for table in tables for arm in table):
        gain = arm["against_adamw"]
        shown = f"{arm['mean']:.1f}"
        if gain is not None:
            shown = "{value:+.1f} [{low:+.1f}, {high:+.1f}]".format(**gain).replace("-0.0 ", "0.0 ")
        assert f"| {shown} | {arm['train_loss']:.2f} |" in text, arm["arm"]
