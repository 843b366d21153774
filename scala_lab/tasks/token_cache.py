"""Arrays on disk by key. A cache only ever saves time: whatever goes wrong with it, the run goes on without."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path

import numpy as np

_CHECKSUM = "checksum"


def cache_folder() -> Path:
    """`$SCALA_LAB_CACHE`, else `scala_lab` in the user's cache folder."""
    chosen = os.environ.get("SCALA_LAB_CACHE")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path(os.path.expanduser("~")) / ".cache") / "scala_lab"


def _file(key: str) -> Path:
    return cache_folder() / "tokens" / f"{key}.safetensors"


def read_arrays(key: str) -> dict[str, np.ndarray] | None:
    """The arrays stored under a key, or None where there are none or the file is damaged."""
    import safetensors
    from safetensors.numpy import load

    try:
        arrays = load(_file(key).read_bytes())
    except (OSError, safetensors.SafetensorError):
        return None
    checksum = arrays.pop(_CHECKSUM, None)
    if checksum is None or int(checksum[0]) != _checksum(arrays):
        return None
    return arrays


def write_arrays(key: str, arrays: dict[str, np.ndarray]) -> None:
    """Store arrays under a key if the folder can be written.

    Written under a temporary name and renamed, so that workers that share the folder never see half a file. Not
    flushed to disk: a file that a power cut damaged fails its checksum and is made again.
    """
    from safetensors.numpy import save

    path = _file(key)
    content = save({**arrays, _CHECKSUM: np.array([_checksum(arrays)], dtype=np.int64)})
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _checksum(arrays: dict[str, np.ndarray]) -> int:
    value = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        value = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), value)
        value = zlib.crc32(array.tobytes(), value)
    return value
