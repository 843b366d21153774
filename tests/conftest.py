"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files with long tests first; within a file and among the others the order stays."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests' tokens apart from the user's."""
    monkeypatch.setenv("SCALA_LAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-class BERT without dropout."""
    from tests.tiny import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "bert")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data and a real encoder, where the machine has them beside the repository."""
    folder = Path(os.environ.get("SCALA_LAB_SHARED", Path(__file__).parent.parent.parent / "shared"))
    if not (folder / "data" / "glue").is_dir():
        pytest.skip("no folder with real GLUE data beside the repository (set SCALA_LAB_SHARED)")
    return folder
