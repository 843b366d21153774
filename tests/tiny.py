"""Small random models in folders, and small data, for tests of everything that trains."""

from __future__ import annotations

import csv
import random
from pathlib import Path

ARCHITECTURES = ("bert", "roberta", "distilbert", "electra", "albert")
WORDS = [f"w{number}" for number in range(40)]


def save_tiny_model(
    folder: Path,
    architecture: str = "bert",
    labels: int = 2,
    dropout: float = 0.0,
    hidden: int = 16,
    layers: int = 2,
    positions: int = 80,
) -> Path:
    """A random classifier of that architecture, with a word-level tokenizer, as `from_pretrained` loads it."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate(specials + WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ["input_ids", "attention_mask"]
    if architecture in ("bert", "electra", "albert"):
        names.insert(1, "token_type_ids")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=names,
        model_max_length=64,
    )
    shape = {"vocab_size": len(vocabulary), "num_labels": labels, "pad_token_id": 0}
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": positions,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    configs = {
        "bert": lambda: transformers.BertConfig(**shape, **sizes),
        "roberta": lambda: transformers.RobertaConfig(**shape, **sizes, type_vocab_size=1),
        "electra": lambda: transformers.ElectraConfig(**shape, **sizes, embedding_size=hidden - 2),
        "albert": lambda: transformers.AlbertConfig(
            **shape, **sizes, embedding_size=hidden - 2, classifier_dropout_prob=dropout
        ),
        "distilbert": lambda: transformers.DistilBertConfig(
            **shape,
            dim=hidden,
            n_layers=layers,
            n_heads=2,
            hidden_dim=2 * hidden,
            max_position_embeddings=positions,
            dropout=dropout,
            attention_dropout=dropout,
            seq_classif_dropout=dropout,
        ),
    }
    config = configs[architecture]()
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        # a tiny initialisation makes all logits equal; spread the weights so that gradients are of order one
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(file: Path, rows: int, kind: str = "classes", classes: int = 2, seed: int = 0) -> Path:
    """A CSV with columns text and label, texts of uneven length; `kind` is classes or scores."""
    rng = random.Random(seed)
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        for row in range(rows):
            words = [rng.choice(WORDS) for _ in range(rng.randint(2, 14))]
            label = row % classes if kind == "classes" else round(rng.uniform(0.05, 4.95), 3)
            writer.writerow([" ".join(words), label])
    return file
