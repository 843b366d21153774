"""Make tiny random classifiers of every architecture that transformers has a text classifier for.

architectures.json has the tiny size of each field of a config, and the fields that an architecture needs beyond these,
with why. Everything else stays as the architecture has it: kinds of layers, initialisation, the padding token and the
side its tokenizer pads.
"""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto, tokenization_auto
from transformers.models.auto.tokenization_auto import TokenizersBackend

from scala_lab.errors import UserError, nearest

MODEL_TYPES: tuple[str, ...] = tuple(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)

_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_SIZE_OF = {name: size for sizes in _TABLE["sizes"].values() for names, size in sizes.items() for name in names.split()}
FIRST_WORD, VOCABULARY = 24, _SIZE_OF["vocab_size"]  # the ids below the first word's are for special tokens
WORDS = [f"w{number}" for number in range(VOCABULARY - FIRST_WORD)]
LONGEST_ROW = 64
NOT_BUILT = {"layoutlmv2": "it reads the image of a page and needs detectron2"}


def tiny_config(model_type: str, labels: int = 2, dropout: float = 0.0, **changes: Any) -> PreTrainedConfig:
    """Make the config of an architecture at a tiny size, with `labels` outputs and all dropout rates at `dropout`."""
    if model_type not in MODEL_TYPES:
        raise UserError(f"transformers has no classifier of type {model_type!r}: {nearest(model_type, MODEL_TYPES)}")
    if model_type in NOT_BUILT:
        raise UserError(f"there is no tiny {model_type}: {NOT_BUILT[model_type]}")
    default = CONFIG_MAPPING[model_type]()
    outside = sorted({number for number in _token_ids(default) if number >= FIRST_WORD})
    ids = {number: new for new, number in enumerate(outside, start=FIRST_WORD - len(outside))}
    fields = _shrunk(default, dropout, ids)
    for extra in _TABLE["extras"]:
        if model_type in extra["types"].split():
            fields |= extra["fields"]
    # label names go with the config into its file; without them a saved BART of two classes comes back with three
    classes = [f"class{number}" for number in range(labels)]
    fields |= {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}}
    return type(default)(**{**fields, **changes})


def _is_token_id(name: str) -> bool:
    return name.endswith(("_token_id", "_token_index"))


def _token_ids(config: PreTrainedConfig) -> Iterator[int]:
    """Yield every id of a special token in a config and its parts."""
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _token_ids(value)
        elif _is_token_id(name) and value is not None:
            yield from value if isinstance(value, list) else [value]


def _shrunk(config: PreTrainedConfig, dropout: float, ids: dict[int, int]) -> dict[str, Any]:
    """Return the fields of a config that a tiny one changes; `ids` moves special tokens into the tiny vocabulary."""
    shrunk: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            shrunk[name] = _shrunk(value, dropout, ids)
        elif _is_token_id(name) and value is not None:
            moved = [ids.get(number, number) for number in (value if isinstance(value, list) else [value])]
            shrunk[name] = moved if isinstance(value, list) else moved[0]
        elif ("dropout" in name or "pdrop" in name) and not isinstance(value, int):
            shrunk[name] = dropout
        elif name in ("layer_types", "mlp_layer_types", "layers_block_type"):
            shrunk[name] = (list(dict.fromkeys(value)) * 2)[: _SIZE_OF["num_hidden_layers"]]  # one of each kind
        elif name in _SIZE_OF and (value or "window" not in name):  # no window stays no window
            shrunk[name] = _SIZE_OF[name]
    return shrunk


def tiny_classifier(
    model_type: str, labels: int = 2, dropout: float = 0.0, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """Make a tiny classifier in float32 and eval mode, with its architecture's own random initialisation."""
    config = tiny_config(model_type, labels, dropout, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    return model.eval()


def save_tiny(folder: Path | str, model_type: str, **options: Any) -> Path:
    """Save a `tiny_classifier` and a tokenizer of the words w0 to w39, as `from_pretrained` loads them."""
    model = tiny_classifier(model_type, **options)
    model.save_pretrained(folder)
    _tokenizer(model).save_pretrained(folder)
    return Path(folder)


def _is_decoder(model_type: str) -> bool:
    """Whether an architecture reads from left to right, as a language model that writes text does."""
    writes = model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type == "mistral4"
    fills_in = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES or model_type == "xlnet"
    return writes and not fills_in


def _tokenizer(model: PreTrainedModel) -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer of one token per word that frames a row with special tokens as the architecture has them.

    Encoders read [CLS] words [SEP], XLNet words [SEP] [CLS], encoder-decoders words [EOS], decoders words alone. A
    decoder whose config has no padding token gets none.
    """
    config, model_type = model.config.get_text_config(), model.config.model_type
    class_name = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model_type) or "TokenizersBackend"
    own = tokenization_auto.tokenizer_class_from_name(class_name)
    replaced = model_type in tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    if own and replaced and own is not TokenizersBackend:
        return _byte_level(own)
    ids: dict[str, int | None] = {}
    for role in ("pad", "bos", "eos", "cls", "sep", "mask", "unk"):
        number = getattr(config, f"{role}_token_id", None)
        ids[role] = number[0] if isinstance(number, list) else number
    missing = ["unk"]
    if not _is_decoder(model_type) and not model.config.is_encoder_decoder:
        for role, other in (("cls", "bos"), ("sep", "eos")):
            if ids[role] is None and ids[other] != ids["pad"]:
                ids[role] = ids[other]
        missing += [role for role in ("pad", "cls", "sep", "mask") if ids[role] is None]
    free = sorted(set(range(FIRST_WORD)) - set(ids.values()))
    ids.update(zip(missing, free, strict=False))

    names = [f"[unused{number}]" for number in range(FIRST_WORD)]
    for role, number in ids.items():
        if number is not None:
            names[number] = f"[{role.upper()}]"
    tokens = {role: names[number] for role, number in ids.items() if number is not None}
    vocabulary = dict(zip(names + WORDS, range(VOCABULARY), strict=True))
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=tokens["unk"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    first, after, last = "", "", ""
    if model.config.is_encoder_decoder:
        after = tokens["eos"]
    elif model_type == "xlnet":
        after, last = tokens["sep"], f"{tokens['cls']}:2"
    elif not _is_decoder(model_type):
        first, after = tokens["cls"], tokens["sep"]
    if after:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {after} {last}".split(),
            pair=f"{first} $A {after} $B:1 {after}:1 {last}".split(),
            special_tokens=[(name, vocabulary[name]) for name in set(tokens.values())],
        )
    reads_segments = "token_type_ids" in inspect.signature(model.forward).parameters and (
        getattr(config, "type_vocab_size", 0) > 1 or model_type == "xlnet"
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", *["token_type_ids"] * reads_segments, "attention_mask"],
        model_max_length=LONGEST_ROW,
        padding_side=inspect.getattr_static(own, "padding_side", "right"),  # static: the class may need a package
        **{f"{role}_token": name for role, name in tokens.items()},
    )


def _byte_level(own: type[Any]) -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer of pieces, for architectures that AutoTokenizer loads with their own class whatever was saved.

    A word is split into its letter and its digits. Padding is <|endoftext|>, also where the config has none.
    """
    space = "\u0120"  # as byte-level vocabularies write it
    pieces = [space, "w", f"{space}w", *"0123456789"]
    names = ["<|endoftext|>", *(f"[unused{number}]" for number in range(1, FIRST_WORD)), *pieces]
    return own(
        vocab={name: number for number, name in enumerate(names)}, merges=[(space, "w")], model_max_length=LONGEST_ROW
    )
