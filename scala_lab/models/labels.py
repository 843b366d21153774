"""Match the outputs of a checkpoint's head with the classes of a task: by name, never by position alone.

A head for two classes fits any task of two classes, and read in the wrong order it is wrong on every row that it has
right. So outputs are matched to the task's classes by the names in config.json or by `--label-names`, and the rows of
the head's last layer are put into the task's order: metrics, predictions and curvature then need to know nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from scala_lab.data.tasks import Task
from scala_lab.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Order = tuple[int, ...]  # for each class of the task, the output of the checkpoint that stands for it
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
    """Return the index of each class among the names; None unless the names are the classes.

    Case and separators do not count, unless classes differ by them alone.

    >>> _match(["Not-Duplicate", "DUPLICATE"], ["duplicate", "not_duplicate"])
    (1, 0)
    """
    for spell in (str, lambda name: re.sub(r"[\s_-]+", "_", name.strip().casefold())):
        spelled, wanted = [spell(name) for name in names], [spell(name) for name in classes]
        if len(set(wanted)) == len(wanted) and sorted(spelled) == sorted(wanted):
            return tuple(spelled.index(name) for name in wanted)
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def order_outputs(model: PreTrainedModel, order: Order, source: str) -> None:
    """Put the outputs of a classifier into another order: afterwards output i is what output `order[i]` was.

    Raises:
        UserError: There is no layer of which this can be proved.
    """
    if order == tuple(range(len(order))):
        return
    named_layer = logits_layer(model, len(order))
    if named_layer is None:
        raise UserError(
            f"{source} has its classes in another order than the task, and no linear layer makes its logits: "
            "they cannot be put into the task's order"
        )
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
            f"{source} has its classes in another order than the task, and {name}, which makes its logits, shares its "
            "weights with other layers: they cannot be put into the task's order"
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
    training = model.training
    with hook, torch.no_grad():
        try:
            return model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        finally:
            model.train(training)
