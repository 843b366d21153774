"""BERT's pretraining on text of the synthetic grammar, which made the embedded encoder.

The loss is BERT's: the mean over masked tokens, which are predicted, plus the mean over pairs of sentences, where the
pooled output of the first token predicts whether the two belong together. Text, masks, order and weights are seeded and
dropout is off, so on one machine with one thread count two runs end with the same bytes.
"""

import json
import string
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, BertConfig, BertForPreTraining, BertTokenizer, PreTrainedTokenizerBase

from scala_lab.data.synthetic.generation import Line, lines
from scala_lab.data.synthetic.grammar import all_words
from scala_lab.errors import UserError
from scala_lab.files import new_folder, write_json

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
RECORD, HEAD = "pretrain.json", "pretraining_heads.safetensors"
FILES = frozenset({RECORD, HEAD, "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
HELDOUT_LINES, HELDOUT_SEED = 4_000, 1_000_003
IGNORE_INDEX = -100  # in `Batch.fits`, for lines without a pair label


@dataclass(frozen=True)
class Settings:
    """Everything that determines the weights, but for the machine."""

    steps: int = 60_000
    seed: int = 0
    threads: int = 1
    batch_size: int = 128
    lines: int = 800_000
    learning_rate: float = 3e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    mask_rate: float = 0.2
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    intermediate: int = 256


class Batch(NamedTuple):
    """Tokenised lines of similar length, before masking."""

    ids: np.ndarray
    types: np.ndarray
    mask: np.ndarray
    fits: np.ndarray


def pretrain(out: Path, settings: Settings, progress: Callable[[int, float], None] | None = None) -> dict[str, Any]:
    """Train an encoder, write it to a folder in place of an earlier one, and return its record, as in `pretrain.json`.

    AdamW, linear warm-up and decay, gradient norm clipped at 1. `progress` gets the number of steps done and the loss.
    """
    check_folder(out)
    torch.set_num_threads(settings.threads)
    rng = np.random.default_rng(settings.seed)
    tokenizer = _build_tokenizer()
    model = _build_model(settings, len(tokenizer))
    text = lines(min(settings.lines, settings.steps * settings.batch_size), settings.seed + 1)
    batches = _length_sorted_batches(text, tokenizer, settings.batch_size, rng)
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98))
    warmup = max(1, round(settings.warmup * settings.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (settings.steps - step) / max(1, settings.steps - warmup))
    )
    # Eval mode: no dropout. The text is endless, so there is nothing to regularise.
    model.eval()
    for step in range(settings.steps):
        batch = batches[step % len(batches)]
        token_logits, targets, pair_logits, fits = _predict(model, batch, settings.mask_rate, rng)
        labelled = fits != IGNORE_INDEX
        pair_loss = cross_entropy(pair_logits[labelled], fits[labelled], reduction="sum") / max(1, int(labelled.sum()))
        loss = cross_entropy(token_logits, targets) + pair_loss
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


def heldout(model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, mask_rate: float) -> dict[str, float]:
    """Compute loss (nats per masked token) and accuracy on tokens and on pairs, on lines not used for pretraining."""
    rng = np.random.default_rng(HELDOUT_SEED)
    batches = _length_sorted_batches(lines(HELDOUT_LINES, HELDOUT_SEED), tokenizer, 125, rng)
    model.eval()
    loss, right, tokens, pairs_right, pairs = 0.0, 0, 0, 0, 0
    with torch.no_grad():
        for batch in batches:
            token_logits, targets, pair_logits, fits = _predict(model, batch, mask_rate, rng)
            loss += float(cross_entropy(token_logits, targets, reduction="sum"))
            right += int((token_logits.argmax(-1) == targets).sum())
            tokens += len(targets)
            pairs_right += int((pair_logits.argmax(-1) == fits).sum())
            pairs += int((fits != IGNORE_INDEX).sum())
    accuracies = {"heldout_accuracy": right / tokens, "heldout_pair_accuracy": pairs_right / pairs}
    return {"heldout_loss": loss / tokens, **accuracies}


def _predict(
    model: BertForPreTraining, batch: Batch, mask_rate: float, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Corrupt a batch and return the logits of the chosen tokens, these tokens, the pair logits and which pairs fit."""
    corrupted, chosen = map(torch.from_numpy, corrupt(batch, model.config.vocab_size, mask_rate, rng))
    ids, types, mask, fits = map(torch.from_numpy, batch)
    output = model.bert(input_ids=corrupted, token_type_ids=types, attention_mask=mask)
    token_logits = model.cls.predictions(output.last_hidden_state[chosen])
    return token_logits, ids[chosen], model.cls.seq_relationship(output.pooler_output), fits


def corrupt(batch: Batch, vocabulary_size: int, rate: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Choose tokens to predict, at least one, of which 80% become [MASK], 10% a random token; return ids and choice."""
    chosen = (rng.random(batch.ids.shape) < rate) & (batch.ids >= len(SPECIAL))
    if not chosen.any():
        chosen[0, 1] = True
    u = rng.random(batch.ids.shape)
    ids = np.where(chosen & (u < 0.8), SPECIAL.index("[MASK]"), batch.ids)
    replacements = rng.integers(len(SPECIAL), vocabulary_size, batch.ids.shape)
    return np.where(chosen & (u >= 0.9), replacements, ids), chosen


def _length_sorted_batches(
    text: list[Line], tokenizer: PreTrainedTokenizerBase, size: int, rng: np.random.Generator
) -> list[Batch]:
    """Sort lines by length, cut them into batches and shuffle the batches."""
    inputs = [tuple(line.text.split("\t")) if "\t" in line.text else line.text for line in text]
    tokenised = tokenizer.backend_tokenizer.encode_batch(inputs)
    encoded = sorted(zip(tokenised, text, strict=True), key=lambda row: len(row[0]))
    batches = []
    for start in range(0, len(encoded) - size + 1, size):
        rows = encoded[start : start + size]
        ids, types, mask = np.zeros((3, size, len(rows[-1][0])), dtype=np.int64)
        for index, (row, _) in enumerate(rows):
            ids[index, : len(row)] = row.ids
            types[index, : len(row)] = row.type_ids
            mask[index, : len(row)] = 1
        fits = np.array([IGNORE_INDEX if line.fits is None else int(line.fits) for _, line in rows])
        batches.append(Batch(ids, types, mask, fits))
    return [batches[index] for index in rng.permutation(len(batches))]


def _build_tokenizer() -> PreTrainedTokenizerBase:
    """Build a lower-casing WordPiece tokenizer: special tokens, characters (which spell unknown words), then words."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    frames = {word for line in lines(20_000, seed=0) for word in line.text.split()}
    words = sorted(set(all_words()) | frames - set(characters))
    pieces = [f"##{character}" for character in string.ascii_lowercase + string.digits]
    vocabulary = dict.fromkeys([*SPECIAL, *characters, *pieces, *words])
    ids = {token: index for index, token in enumerate(vocabulary)}
    return BertTokenizer(vocab=ids, do_lower_case=True, model_max_length=128)


def _build_model(settings: Settings, vocabulary_size: int) -> BertForPreTraining:
    """Initialise the encoder and its pretraining heads from the seed."""
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


def check_folder(out: Path) -> None:
    """Refuse a folder that holds anything but an encoder."""
    if out.exists() and not (out.is_dir() and {file.name for file in out.iterdir()} <= FILES):
        raise UserError(f"--out {out} holds something other than an encoder: name a new folder")


def _write(out: Path, model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, record: dict[str, Any]) -> None:
    """Write the encoder apart from its head, so that a classifier loads it without unexpected weights."""
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
    """Read the encoder with its head, the tokenizer and the record from a folder that `pretrain` wrote."""
    if not (folder / RECORD).is_file():
        raise UserError(f"{folder} holds no pretrained encoder: {RECORD} is missing")
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    model = BertForPreTraining(BertConfig.from_pretrained(folder))
    model.bert.load_state_dict(load_file(folder / "model.safetensors"))
    model.cls.load_state_dict(load_file(folder / HEAD), strict=False)
    return model, AutoTokenizer.from_pretrained(folder), record
