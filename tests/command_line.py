"""Running commands in this process and looking at what they said and what they wrote."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scala_lab.cli import main


def flags(**settings: object) -> list[str]:
    """`--name value` for each setting; None leaves it out, True gives the flag alone, a tuple several values."""
    words: list[str] = []
    for name, value in settings.items():
        if value is None:
            continue
        words.append("--" + name.strip("_").replace("_", "-"))
        if value is not True:
            words += [str(part) for part in (value if isinstance(value, tuple) else (value,))]
    return words


def train_flags(model: Path, rows: Path, /, **changes: object) -> list[str]:
    """A run of 9 steps over 3 epochs on `write_rows(rows, 48)`, with some settings changed."""
    settings = {
        **own_rows(rows),
        "model": model,
        "method": "lamb",
        "batch_size": 16,
        "micro_batch": 8,
        "epochs": 3,
        "lr": 0.01,
        "threads": 1,
        "tensorboard": None,
        "no_tensorboard": True,
        "out": "out",
    }
    return ["train", *flags(**settings | changes)]


def own_rows(file: str | Path = "rows.csv", **more: object) -> dict[str, object]:
    """Settings that say what is in a file of `write_rows`, for `flags` or `RunSpec.of`."""
    return {"task": str(file), "text_columns": ("text",), "label_column": "label", "eval_file": file, **more}


def data_flags(rows: Path, /, **changes: object) -> list[str]:
    """What `evaluate` needs to know of the rows."""
    return flags(**own_rows(rows, threads=1) | changes)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file's bytes and every folder under a folder, but for the token cache."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] != "cache"
    }


def refuse(capfd: pytest.CaptureFixture[str], args: list[str], *words: str) -> str:
    """Run a command that must end with exit code 2, one sentence, and the current folder as it was."""
    capfd.readouterr()
    before = snapshot(Path.cwd())
    code = main(args)
    out, err = capfd.readouterr()
    assert code == 2, out + err
    assert out == ""
    assert err.startswith("scala-lab: error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err, err
    assert snapshot(Path.cwd()) == before
    return err


def strict_json(text: str) -> object:
    """Read JSON as other languages do: NaN and Infinity are errors."""

    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse_constant)


@contextlib.contextmanager
def interrupted_after(steps: int) -> Iterator[None]:
    """Have Ctrl-C arrive when that many steps of a run are done."""
    from scala_lab.training.trainer import Training

    update = Training.update

    def interrupt(self: Training, step: int) -> tuple[float, float]:
        if step >= steps:
            raise KeyboardInterrupt
        return update(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "update", interrupt)
        yield
