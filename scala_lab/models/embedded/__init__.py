"""The encoder that ships with the package: a small BERT pretrained on text of the embedded tasks' grammar."""

from __future__ import annotations

from pathlib import Path

FOLDER: Path = Path(__file__).parent
"""What `from_pretrained` loads: config, weights, tokenizer; beside them the record of the pretraining."""
