"""BERT's pretraining on text of the grammar: how the embedded encoder was made, and how to make it again.

Two losses are added, as BERT does: masked tokens are guessed back, and the first token's output, through the pooler,
says whether a pair of sentences belongs together.

The result is a function of the settings alone: text, masks, order and weights are seeded, batches hold lines of like
length, and dropout is off, so on one machine with one thread count two runs end with the same bytes.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.data.synthetic.generation import Line, lines, sentences
from scala_lab.data.synthetic.words import all_words
from scala_lab.errors import UserError
from scala_lab.files import new_folder, write_json

if TYPE_CHECKING:
    import torch
    from transformers import BertForPreTraining, PreTrainedTokenizerBase

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
RECORD, HEAD = "pretrain.json", "pretraining_heads.safetensors"
FILES = frozenset({RECORD, HEAD, "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
"""What an encoder's folder holds."""

HELDOUT_LINES, HELDOUT_SEED = 4_000, 1_000_003


@dataclass(frozen=True)
class Settings:
    """Everything that determines the weights, but for the machine."""

    steps: int = 12_000
    seed: int = 0
    threads: int = 2
    batch_size: int = 128
    lines: int = 300_000
    learning_rate: float = 3e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    mask_rate: float = 0.2
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    intermediate: int = 256


@dataclass(frozen=True)
class Batch:
    """Tokenised lines of like length, before masking."""

    ids: np.ndarray
    types: np.ndarray
    mask: np.ndarray
    fits: np.ndarray


NOT_ASKED = -100
"""In `Batch.fits`, for lines that are no pair; the class index that torch's cross-entropy leaves out."""


def vocabulary() -> list[str]:
    """The special tokens, then single characters (so that a strange word is spelled, not lost), then words."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    frames = {word for line in sentences(20_000, seed=0) for word in line.split()}
    words = sorted(set(all_words()) | frames - set(characters))
    pieces = [f"##{character}" for character in string.ascii_lowercase + string.digits]
    return list(dict.fromkeys([*SPECIAL, *characters, *pieces, *words]))


def build_tokenizer() -> PreTrainedTokenizerBase:
    """A lower-casing WordPiece tokenizer over `vocabulary`."""
    from transformers import BertTokenizer

    ids = {token: index for index, token in enumerate(vocabulary())}
    return BertTokenizer(vocab=ids, do_lower_case=True, model_max_length=128)


def build_model(settings: Settings, vocabulary_size: int) -> BertForPreTraining:
    """The encoder with its pretraining heads, freshly initialised from the seed."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.intermediate,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return BertForPreTraining(config)


def length_uniform_batches(
    text: list[Line], tokenizer: PreTrainedTokenizerBase, size: int, rng: np.random.Generator
) -> list[Batch]:
    """Lines sorted by length, cut into batches, batches shuffled."""
    inputs = [tuple(line.text.split("\t")) if "\t" in line.text else line.text for line in text]
    tokenised = [
        row
        for start in range(0, len(inputs), 10_000)
        for row in tokenizer.backend_tokenizer.encode_batch(inputs[start : start + 10_000])
    ]
    encoded = [
        (np.array(row.ids), np.array(row.type_ids), NOT_ASKED if line.fits is None else int(line.fits))
        for row, line in zip(tokenised, text, strict=True)
    ]
    encoded.sort(key=lambda row: len(row[0]))
    batches = []
    for start in range(0, len(encoded) - size + 1, size):
        rows = encoded[start : start + size]
        empty = np.zeros((size, len(rows[-1][0])), dtype=np.int64)
        batch = Batch(empty, empty.copy(), empty.copy(), fits=np.array([fits for _, _, fits in rows]))
        for index, (ids, types, _) in enumerate(rows):
            batch.ids[index, : len(ids)] = ids
            batch.types[index, : len(ids)] = types
            batch.mask[index, : len(ids)] = 1
        batches.append(batch)
    return [batches[index] for index in rng.permutation(len(batches))]


def corrupt(batch: Batch, vocabulary_size: int, rate: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Choose tokens to predict; of these 80% become [MASK], 10% a random token, 10% stay.

    Returns:
        The corrupted ids, and where the chosen tokens are (a boolean array with at least one True).
    """
    chosen = (rng.random(batch.ids.shape) < rate) & (batch.ids >= len(SPECIAL))
    if not chosen.any():
        chosen[0, 1] = True
    how = rng.random(batch.ids.shape)
    ids = np.where(chosen & (how < 0.8), SPECIAL.index("[MASK]"), batch.ids)
    strange = rng.integers(len(SPECIAL), vocabulary_size, batch.ids.shape)
    return np.where(chosen & (how >= 0.9), strange, ids), chosen


@dataclass(frozen=True)
class Guesses:
    """What the model says of a corrupted batch, and what is true: tokens at the chosen places, and pairs that fit."""

    token_logits: torch.Tensor
    tokens: torch.Tensor
    pair_logits: torch.Tensor
    fits: torch.Tensor

    def loss(self) -> torch.Tensor:
        """Mean over tokens plus mean over pairs, as BERT's."""
        from torch.nn.functional import cross_entropy

        asked = self.fits != NOT_ASKED
        pairs = cross_entropy(self.pair_logits[asked], self.fits[asked], reduction="sum") / max(1, int(asked.sum()))
        return cross_entropy(self.token_logits, self.tokens) + pairs


def _guess(model: BertForPreTraining, batch: Batch, rate: float, rng: np.random.Generator) -> Guesses:
    """Token logits at the chosen positions only."""
    import torch

    ids, chosen = corrupt(batch, model.config.vocab_size, rate, rng)
    output = model.bert(
        input_ids=torch.from_numpy(ids),
        token_type_ids=torch.from_numpy(batch.types),
        attention_mask=torch.from_numpy(batch.mask),
    )
    where = torch.from_numpy(chosen)
    return Guesses(
        model.cls.predictions(output.last_hidden_state[where]),
        torch.from_numpy(batch.ids)[where],
        model.cls.seq_relationship(output.pooler_output),
        torch.from_numpy(batch.fits),
    )


def heldout(model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, mask_rate: float) -> dict[str, float]:
    """Loss (nats per chosen token), and accuracy on tokens and on pairs, on lines that no pretraining has seen."""
    import torch

    rng = np.random.default_rng(HELDOUT_SEED)
    batches = length_uniform_batches(lines(HELDOUT_LINES, HELDOUT_SEED), tokenizer, 125, rng)
    model.eval()
    loss, right, tokens, pairs_right, pairs = 0.0, 0, 0, 0, 0
    with torch.no_grad():
        for batch in batches:
            found = _guess(model, batch, mask_rate, rng)
            loss += float(torch.nn.functional.cross_entropy(found.token_logits, found.tokens, reduction="sum"))
            right += int((found.token_logits.argmax(-1) == found.tokens).sum())
            tokens += len(found.tokens)
            pairs_right += int((found.pair_logits.argmax(-1) == found.fits).sum())
            pairs += int((found.fits != NOT_ASKED).sum())
    return {
        "heldout_loss": loss / tokens,
        "heldout_accuracy": right / tokens,
        "heldout_pair_accuracy": pairs_right / pairs,
    }


def pretrain(
    out: Path, settings: Settings | None = None, progress: Callable[[int, float], None] | None = None
) -> dict[str, Any]:
    """Train an encoder and write its folder: weights, config, tokenizer, head and record.

    AdamW, linear warm-up and decay, gradient norm clipped at 1.

    Args:
        out: Folder to write; it must be new, or hold an earlier encoder, which is replaced at the end.
        settings: What to train and how.
        progress: Called after every step with the number of steps done and the step's loss.

    Returns:
        The record that is written to `pretrain.json`.

    Raises:
        UserError: The folder holds something else.
    """
    import torch

    settings = settings or Settings()
    check_folder(out)
    torch.set_num_threads(settings.threads)
    rng = np.random.default_rng(settings.seed)
    tokenizer = build_tokenizer()
    model = build_model(settings, len(tokenizer))
    text = lines(min(settings.lines, settings.steps * settings.batch_size), settings.seed + 1)
    batches = length_uniform_batches(text, tokenizer, settings.batch_size, rng)
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    plain = [weight for weight in model.parameters() if weight.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
    )
    warm = max(1, round(settings.warmup * settings.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (settings.steps - step) / max(1, settings.steps - warm))
    )
    # Eval mode: no dropout. The text is endless, so there is nothing to regularise.
    model.eval()
    for step in range(settings.steps):
        batch = batches[step % len(batches)]
        loss = _guess(model, batch, settings.mask_rate, rng).loss()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, float(loss.detach()))
    record = {**asdict(settings), **heldout(model, tokenizer, settings.mask_rate), "torch": torch.__version__}
    _write(out, model, tokenizer, record)
    return record


def check_folder(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier encoder."""
    if out.exists() and not (out.is_dir() and {file.name for file in out.iterdir()} <= FILES):
        raise UserError(f"--out {out} holds something other than an encoder: name a new folder")


def _write(out: Path, model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, record: dict[str, Any]) -> None:
    """The encoder apart from its head, so that a classifier loads it without leftovers."""
    from safetensors.torch import save_file

    head = {name: weight for name, weight in model.cls.state_dict().items() if "decoder" not in name}
    with new_folder(out) as folder:
        model.bert.config.architectures = ["BertModel"]
        model.bert.config.save_pretrained(folder)
        save_file(dict(model.bert.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
        save_file(head, folder / HEAD, metadata={"format": "pt"})
        tokenizer.save_pretrained(folder)
        for file in folder.iterdir():
            file.chmod(0o644)
        write_json(folder / RECORD, record)


def read_encoder(folder: Path) -> tuple[BertForPreTraining, PreTrainedTokenizerBase, dict[str, Any]]:
    """The encoder with its head, the tokenizer and the record from a folder that `pretrain` wrote."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, BertConfig, BertForPreTraining

    if not (folder / RECORD).is_file():
        raise UserError(f"{folder} holds no pretrained encoder: {RECORD} is missing")
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    model = BertForPreTraining(BertConfig.from_pretrained(folder))
    model.bert.load_state_dict(load_file(folder / "model.safetensors"))
    model.cls.load_state_dict(load_file(folder / HEAD), strict=False)
    return model, AutoTokenizer.from_pretrained(folder), record
