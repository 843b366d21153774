"""Files: atomic writes, which a crash leaves undone or whole, never half done, and reading TOML."""

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scala_lab.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def check_writable(folder: Path, rule: str) -> None:
    """Refuse a folder that cannot be made or written to; `rule` says what is a folder, `a report is a folder`."""
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise UserError(f"{existing} is a file: {rule}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be written to: {existing} is read-only")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; one that is not TOML is a ValueError."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(nan_to_null(value), indent=2, allow_nan=False) + "\n")


def nan_to_null(value: Any) -> Any:
    """Replace numbers that are not finite by None: JSON has none for them, and only Python reads NaN."""
    if isinstance(value, dict):
        return {name: nan_to_null(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [nan_to_null(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes or replaces `path` when the block succeeds, and is deleted otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True) as temporary:
        new, old = Path(temporary, "new"), Path(temporary, "old")
        new.mkdir()
        yield new
        for file in (*new.rglob("*"), new):
            _sync(file)
        os.chmod(new, 0o755)
        try:
            if path.exists():
                os.replace(path, old)
            os.replace(new, path)
        except BaseException:
            if old.exists():
                os.rename(old, path)
            raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
