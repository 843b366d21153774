"""The command line: fast help, one sentence and exit code 2 for a mistake, nothing written by it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import scala_lab
from scala_lab import cli
from scala_lab.cli import COMMANDS, main
from scala_lab.errors import UserError
from tests.processes import PATIENCE

ROOT = Path(__file__).parent.parent


def python(code: str, *, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd or ROOT, timeout=PATIENCE)


def test_help_lists_every_command_without_heavy_imports():
    heavy = ("torch", "transformers", "datasets", "numpy", "pandas", "tyro", "rich")
    done = python(
        "import sys; from scala_lab.cli import main; code = main(['--help']);"
        f"print([name for name in {heavy!r} if name in sys.modules]); sys.exit(code)"
    )
    assert done.returncode == 0, done.stderr
    for name, command in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert command.summary in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_public_names_import_without_torch():
    done = python("import sys, scala_lab, scala_lab.optim, scala_lab.config; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_version_is_the_package_s(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"scala-lab {scala_lab.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_options_and_a_run(name):
    command = COMMANDS[name]
    module = importlib.import_module(f"scala_lab.commands.{name}")
    assert getattr(module, command.options).__doc__
    assert callable(module.run)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["trian"], "unknown command 'trian': did you mean 'train'?"),
        (["--trian"], "unknown flag '--trian': did you mean 'train'?"),
        (["train", "--bach-size", "3"], "train: unknown flag '--bach-size': did you mean '--batch-size'?"),
        (["train", "--sede=3"], "train: unknown flag '--sede': did you mean '--seed'?"),
        (["train", "--batch-size", "many"], "train: --batch-size must be a whole number, not 'many'"),
        (["train", "--lr", "fast"], "train: --lr must be a number, not 'fast'"),
        (["train", "--ascent", "up"], "train: --ascent must be one of literal, normalized, not 'up'"),
        (["train", "--method"], "train: --method needs a value"),
        (["train", "mini-sst2"], "train: unexpected 'mini-sst2': every setting is given as --flag value"),
        (["evaluate", "runs/a", "--taks", "sst2"], "evaluate: unknown flag '--taks': did you mean '--task'?"),
    ],
)
def test_mistake_gets_one_sentence_and_leaves_nothing(args, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"scala-lab: error: {sentence}\n"
    assert list(tmp_path.iterdir()) == []


def run_as(monkeypatch, function):
    module = types.ModuleType("scala_lab.commands.try")
    module.parse = lambda args: args
    module.run = function
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "try", cli.Command("", ""))


def test_interrupt_ends_with_130_and_one_line(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    run_as(monkeypatch, interrupted)
    assert main(["try"]) == 130
    assert capsys.readouterr().err == "scala-lab: interrupted\n"


def test_user_error_of_several_lines_becomes_one(monkeypatch, capsys):
    def refuse(options):
        raise UserError("no such\n  file")

    run_as(monkeypatch, refuse)
    assert main(["try"]) == 2
    assert capsys.readouterr().err == "scala-lab: error: no such file\n"


def test_parse_of_a_module_gets_the_rest_of_the_line_and_its_code_is_returned(monkeypatch):
    run_as(monkeypatch, lambda options: len(options))
    assert main(["try", "--a", "b", "c"]) == 3


@pytest.mark.parametrize("args", [["--help"], ["train", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_leaves_early_is_no_error(args, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "scala_lab", *args]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment, timeout=PATIENCE
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_config_file_with_an_unknown_key_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("batchsize = 3\n")
    assert main(["train", "--config", "run.toml"]) == 2
    assert capsys.readouterr().err == (
        "scala-lab: error: run.toml: unknown key 'batchsize': did you mean 'batch_size'?\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
