"""Rows as token ids: tokenised once, cached on disk by content, cut into padded batches on demand.

Arrays on disk by key. A cache only ever saves time: whatever goes wrong with it, the run goes on without.

Rows as token ids: tokenised once, kept on disk by content, cut into padded batches on demand.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scala_lab.batches import cut, cut_equal_lengths
from scala_lab.data.tables import Rows, TaskData

if TYPE_CHECKING:
    import torch


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


TOKENS_VERSION = 1
"""Part of every cache key: raised when the same rows and tokenizer would be stored differently than before."""

ROWS_PER_CALL = 4096
"""Rows handed to the tokenizer at once: enough to keep its threads busy, little enough to keep memory low."""


@dataclass(frozen=True)
class TokenSplit:
    """The rows of one split, laid end to end.

    Row i is `ids[offsets[i]:offsets[i + 1]]`, and the same slice of `type_ids` where the model has them.
    Labels are int64 classes or float32 scores.
    """

    ids: np.ndarray
    offsets: np.ndarray
    type_ids: np.ndarray | None
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray) -> TokenSplit:
        """A split of these rows, in this order."""
        indices = np.asarray(indices, dtype=np.int64)
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Token j of row i of the result lies as far from the start of its row here as there.
        source = np.repeat(self.offsets[indices] - offsets[:-1], lengths) + np.arange(offsets[-1])
        type_ids = None if self.type_ids is None else self.type_ids[source]
        return TokenSplit(self.ids[source], offsets, type_ids, self.labels[indices])


def tokenise(rows: Rows, tokenizer: Any, max_length: int) -> TokenSplit:
    """Token ids of all rows, cut to `max_length` tokens: from the cache, else computed and put there.

    The cache key covers texts, labels, everything the tokenizer does and the length, so nothing stale is found.
    """
    limit = min(max_length, getattr(tokenizer, "model_max_length", max_length))
    key = hashlib.sha256(
        json.dumps([TOKENS_VERSION, fingerprint(rows), tokenizer_fingerprint(tokenizer), limit]).encode()
    ).hexdigest()
    stored = read_arrays(key)
    if stored is not None:
        return TokenSplit(stored["ids"], stored["offsets"], stored.get("type_ids"), stored["labels"])
    split = _tokenise(rows, tokenizer, limit)
    arrays = {"ids": split.ids, "offsets": split.offsets, "labels": split.labels}
    write_arrays(key, arrays if split.type_ids is None else {**arrays, "type_ids": split.type_ids})
    return split


def _tokenise(rows: Rows, tokenizer: Any, limit: int) -> TokenSplit:
    with_types = "token_type_ids" in tokenizer.model_input_names
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    for start in range(0, len(rows), ROWS_PER_CALL):
        part = slice(start, start + ROWS_PER_CALL)
        encoded = tokenizer(
            rows.first[part],
            None if rows.second is None else rows.second[part],
            truncation=True,
            max_length=limit,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=with_types,
        )
        lengths.append(np.array([len(row) for row in encoded["input_ids"]], dtype=np.int64))
        ids.append(_flat(encoded["input_ids"], np.int32))
        if with_types:
            types.append(_flat(encoded["token_type_ids"], np.uint8))
    offsets = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
    return TokenSplit(
        np.concatenate([np.empty(0, np.int32), *ids]),
        offsets,
        np.concatenate([np.empty(0, np.uint8), *types]) if with_types else None,
        rows.labels,
    )


def _flat(rows: Sequence[Sequence[int]], dtype: Any) -> np.ndarray:
    return np.array([token for row in rows for token in row], dtype=dtype)


@dataclass(frozen=True)
class Padding:
    """How rows of different lengths become one batch.

    Attributes:
        token: Id of the token that fills the shorter rows; the attention mask is 0 on it.
        side: Which end of a row is filled; with none, only rows of equal length share a batch.
    """

    token: int = 0
    side: Literal["right", "left", "none"] = "right"


def collate(split: TokenSplit, indices: np.ndarray, padding: Padding) -> dict[str, torch.Tensor]:
    """Rows as a batch a transformers model takes, padded to the longest of them.

    Returns:
        int64 `input_ids`, `attention_mask` and, where the split has them, `token_type_ids`, each of shape
        (rows, longest); `labels` as int64, or float32 for regression.
    """
    import torch

    indices = np.asarray(indices, dtype=np.int64)
    starts, ends = split.offsets[indices], split.offsets[indices + 1]
    lengths = ends - starts
    longest = lengths.max(initial=0)
    columns = np.arange(longest) - (longest - lengths[:, None] if padding.side == "left" else 0)
    mask = (columns >= 0) & (columns < lengths[:, None])
    if padding.side == "none" and not mask.all():
        raise ValueError("rows of different lengths cannot share a batch of a model that must not be padded")
    source = (starts[:, None] + columns)[mask]
    batch = {"input_ids": _pad(split.ids, source, mask, padding.token), "attention_mask": mask.astype(np.int64)}
    if split.type_ids is not None:
        batch["token_type_ids"] = _pad(split.type_ids, source, mask, 0)
    batch["labels"] = split.labels[indices]
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def cut_by_length(split: TokenSplit, rows: np.ndarray, most: int, padding: Padding) -> list[np.ndarray]:
    """Sort rows by length, longest first, and cut them into parts of at most `most` that may share a batch."""
    longest_first = rows[np.argsort(-split.lengths[rows], kind="stable")]
    if padding.side == "none":
        return cut_equal_lengths(longest_first, split.lengths, most)
    return cut(longest_first, most)


def _pad(flat: np.ndarray, source: np.ndarray, mask: np.ndarray, pad: int) -> np.ndarray:
    padded = np.full(mask.shape, pad, dtype=np.int64)
    padded[mask] = flat[source]
    return padded


def fingerprint(rows: Rows) -> str:
    """Hash of the texts and labels of a split."""
    digest = hashlib.sha256(f"{len(rows)} {rows.labels.dtype}".encode())
    for texts in (rows.first, rows.second or []):
        encoded = [text.encode() for text in texts]
        # With the lengths beside it, the joined text can be cut in one way only.
        digest.update(np.array([len(text) for text in encoded], dtype=np.int64).tobytes())
        digest.update(b"".join(encoded))
    digest.update(np.ascontiguousarray(rows.labels).tobytes())
    return digest.hexdigest()


def data_fingerprint(data: TaskData) -> str:
    """Hash of all rows of a task and of its classes: equal only if a run would see the same data."""
    splits = {"train": fingerprint(data.train), **{name: fingerprint(rows) for name, rows in data.evals.items()}}
    text = json.dumps([data.task.labels, splits], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of what decides the ids of a text, apart from the length it is cut to."""
    kind = type(tokenizer).__name__
    sides = [getattr(tokenizer, "truncation_side", "right"), list(tokenizer.model_input_names)]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        # Left behind by the last call, set anew by the next.
        state["truncation"] = state["padding"] = None
    else:
        state = [tokenizer.get_vocab(), {name: str(value) for name, value in tokenizer.init_kwargs.items()}]
    return hashlib.sha256(json.dumps([kind, sides, state], sort_keys=True).encode()).hexdigest()
