"""Rows as token ids: tokenised once, cached on disk by content, cut into padded batches on demand."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors.numpy import load, save

from scala_lab.batches import cut, cut_equal_lengths
from scala_lab.data.tasks import Rows, TaskData
from scala_lab.files import write_bytes

if TYPE_CHECKING:
    import torch

CACHE_VERSION = 2  # to be raised when the same rows and tokenizer are stored differently than before
ROWS_PER_CALL = 4096  # of the tokenizer: enough to keep its threads busy, few enough to keep memory low


@dataclass(frozen=True)
class TokenSplit:
    """The tokens of one split, concatenated: row i is `ids[offsets[i]:offsets[i + 1]]`, and so are its `type_ids`."""

    ids: np.ndarray
    offsets: np.ndarray
    type_ids: np.ndarray | None  # where the model has them
    labels: np.ndarray  # int64 classes or float32 scores

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row."""
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray) -> TokenSplit:
        """Return a split of the rows at these indices, in this order."""
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # A token has the same distance from the start of its row in both splits.
        source = np.repeat(self.offsets[indices] - offsets[:-1], lengths) + np.arange(offsets[-1])
        type_ids = None if self.type_ids is None else self.type_ids[source]
        return TokenSplit(self.ids[source], offsets, type_ids, self.labels[indices])


def tokenise(rows: Rows, tokenizer: Any, max_length: int) -> TokenSplit:
    """Tokenise all rows, truncated to `max_length` tokens, or read them from the cache, whose key covers all inputs."""
    limit = min(max_length, getattr(tokenizer, "model_max_length", max_length))
    key = _sha256(json.dumps([CACHE_VERSION, fingerprint(rows), tokenizer_fingerprint(tokenizer), limit]))
    path = cache_folder() / "tokens" / f"{key}.tokens"
    stored = b""
    with suppress(OSError):  # where the cache cannot be read or written, the run goes on without it
        stored = path.read_bytes()
    if stored[-4:] == _checksum(stored[:-4]):
        arrays = load(stored[:-4])
    else:
        arrays = _tokenise(rows, tokenizer, limit)
        content = save(arrays)
        with suppress(OSError):
            write_bytes(path, content + _checksum(content))
    return TokenSplit(arrays["ids"], arrays["offsets"], arrays.get("type_ids"), arrays["labels"])


def _tokenise(rows: Rows, tokenizer: Any, limit: int) -> dict[str, np.ndarray]:
    with_types = "token_type_ids" in tokenizer.model_input_names
    ids, types, lengths = [np.empty(0, np.int32)], [np.empty(0, np.uint8)], [np.zeros(1, np.int64)]
    options = {"truncation": True, "max_length": limit, "return_attention_mask": False, "padding": False}
    for start in range(0, len(rows), ROWS_PER_CALL):
        part = slice(start, start + ROWS_PER_CALL)
        second = None if rows.second is None else rows.second[part]
        encoded = tokenizer(rows.first[part], second, return_token_type_ids=with_types, **options)
        lengths.append(np.array([len(row) for row in encoded["input_ids"]], dtype=np.int64))
        ids.append(np.array([token for row in encoded["input_ids"] for token in row], dtype=np.int32))
        if with_types:
            types.append(np.array([token for row in encoded["token_type_ids"] for token in row], dtype=np.uint8))
    arrays = {"ids": np.concatenate(ids), "offsets": np.concatenate(lengths).cumsum(), "labels": rows.labels}
    return {**arrays, "type_ids": np.concatenate(types)} if with_types else arrays


@dataclass(frozen=True)
class Padding:
    """How rows of different lengths become one batch."""

    token: int = 0  # id of the token that fills the shorter rows; the attention mask is 0 on it
    side: Literal["right", "left", "none"] = "right"  # with none, only rows of equal length share a batch


def collate(
    split: TokenSplit, indices: np.ndarray, padding: Padding, device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Collate rows into a batch for a transformers model, padded to the longest of them.

    Inputs are int64, (rows, longest), without `token_type_ids` where the split has none; labels as in the split.
    """
    import torch

    starts = split.offsets[indices]
    lengths = split.offsets[indices + 1] - starts
    longest = lengths.max(initial=0)
    columns = np.arange(longest) - (longest - lengths[:, None] if padding.side == "left" else 0)
    mask = (columns >= 0) & (columns < lengths[:, None])
    source = (starts[:, None] + columns)[mask]

    batch = {"input_ids": np.full(mask.shape, padding.token, np.int64), "attention_mask": mask.astype(np.int64)}
    batch["input_ids"][mask] = split.ids[source]
    if split.type_ids is not None:
        batch["token_type_ids"] = np.zeros(mask.shape, np.int64)
        batch["token_type_ids"][mask] = split.type_ids[source]
    batch["labels"] = split.labels[indices]
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in batch.items()}


def cut_by_length(split: TokenSplit, rows: np.ndarray, max_rows: int, padding: Padding) -> list[np.ndarray]:
    """Sort rows by length, longest first, and cut them into parts of at most `max_rows` that may share a batch."""
    longest_first = rows[np.argsort(-split.lengths[rows], kind="stable")]
    if padding.side == "none":
        return cut_equal_lengths(longest_first, split.lengths, max_rows)
    return cut(longest_first, max_rows)


def fingerprint(rows: Rows) -> str:
    """Hash the texts and labels of a split."""
    digest = hashlib.sha256(f"{len(rows)} {rows.labels.dtype}".encode())
    for texts in (rows.first, rows.second or []):
        encoded = [text.encode() for text in texts]
        # The lengths make the concatenation unambiguous.
        digest.update(np.array([len(text) for text in encoded], dtype=np.int64).tobytes())
        digest.update(b"".join(encoded))
    digest.update(np.ascontiguousarray(rows.labels).tobytes())
    return digest.hexdigest()


def data_fingerprint(data: TaskData) -> str:
    """Hash all rows of a task and its classes: equal only if a run would see the same data."""
    splits = {"train": fingerprint(data.train), **{name: fingerprint(rows) for name, rows in data.evals.items()}}
    return _sha256(json.dumps([data.task.labels, splits], sort_keys=True))


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash everything that determines the ids of a text except the length it is truncated to."""
    kind = type(tokenizer).__name__
    sides = [getattr(tokenizer, "truncation_side", "right"), list(tokenizer.model_input_names)]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        # State of the last call, overwritten by the next.
        state["truncation"] = state["padding"] = None
    else:
        state = [tokenizer.get_vocab(), {name: str(value) for name, value in tokenizer.init_kwargs.items()}]
    return _sha256(json.dumps([kind, sides, state], sort_keys=True))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def cache_folder() -> Path:
    """Return `$SCALA_LAB_CACHE`, else `scala_lab` in the user's cache folder."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("SCALA_LAB_CACHE") or Path(user_cache) / "scala_lab")


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")
