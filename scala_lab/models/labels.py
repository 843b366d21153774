"""Which output of a checkpoint stands for which class of a task: by name, never by place alone.

A head for two classes fits any task of two classes, and read in the wrong order it is wrong on every row that it has
right. So outputs are matched to the task's classes by the names in config.json or by `--label-names`, and the rows of
the head's last layer are put into the task's order: metrics, predictions and curvature then need to know nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scala_lab.data.tasks import Task
from scala_lab.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle
    from transformers import PreTrainedModel

Order = tuple[int, ...]
"""For each class of the task, the output of the checkpoint that stands for it."""

SHOWN = 10
"""Names that a sentence lists before it counts the rest."""


def output_order(config: Any, task: Task, source: str, label_names: Sequence[str] = ()) -> Order:
    """The outputs of a trained head in the order of the task's classes.

    Args:
        config: The checkpoint's, with as many labels as the task has classes.
        task: Has classes.
        source: What to call the checkpoint in errors.
        label_names: The task's classes in the order of the outputs, where the checkpoint itself does not say.

    Raises:
        UserError: The names do not say which output is which class.
    """
    names = _names(config, source)
    own = _matched(names, task.labels)
    if label_names:
        given = given_order(task, label_names)
        if own not in (None, given):
            raise UserError(
                f"{source} has its outputs in the order {_listed(names)}, and --label-names says "
                f"{_listed(label_names)}: leave it out, or put id2label in its config.json right"
            )
        return given
    if own is not None:
        return own
    if _generic(names) and task.labels == tuple(map(str, range(len(names)))):
        return tuple(range(len(names)))
    raise UserError(
        f"{source} calls its outputs {_listed(names)}, and the classes of task {task.name} are {_listed(task.labels)}: "
        "give --label-names with these classes in the order of the checkpoint's outputs"
    )


def kept_head_order(config: Any, task: Task, source: str, label_names: Sequence[str] = ()) -> Order | None:
    """The same for a head that training goes on with; None where nothing says which output is which class."""
    try:
        return output_order(config, task, source, label_names)
    except UserError:
        if label_names:
            raise
        return None


def given_order(task: Task, label_names: Sequence[str]) -> Order:
    """The order that `--label-names` says, which must be one of all the task's classes."""
    if task.regression:
        raise UserError(f"--label-names is for classes; task {task.name} predicts a number")
    order = _matched(label_names, task.labels)
    if order is None:
        raise UserError(
            f"--label-names must be the classes of task {task.name} in some order, {_listed(task.labels)}, "
            f"not {_listed(label_names)}"
        )
    return order


def order_outputs(model: PreTrainedModel, order: Order, source: str) -> None:
    """Put the outputs of a classifier into another order: afterwards output i is what output `order[i]` was.

    Raises:
        UserError: There is no layer of which this can be proved.
    """
    import torch

    if order == tuple(range(len(order))):
        return
    found = logits_layer(model, len(order))
    if found is None:
        raise UserError(
            f"{source} has its classes in another order than the task, and no linear layer makes its logits: "
            "they cannot be put into the task's order"
        )
    name, layer = found
    before = _input_of(layer, model)
    with torch.no_grad():
        for parameter in layer.parameters(recurse=False):
            parameter.copy_(parameter[list(order)])
    if not _input_of(layer, model).equal(before):
        raise UserError(
            f"{source} has its classes in another order than the task, and {name}, which makes its logits, shares its "
            "weights with other layers: they cannot be put into the task's order"
        )


def logits_layer(model: PreTrainedModel, outputs: int) -> tuple[str, torch.nn.Linear] | None:
    """The linear layer whose outputs are the logits, and its name.

    Proved by having it put out numbers of our own for a row: the logits must be these numbers, to the bit. Comparing
    logits before and after would prove nothing where the weights of a head are small or equal.
    """
    import torch

    marks = torch.arange(1.0, outputs + 1)
    for name, module in reversed(list(model.named_modules())):
        if isinstance(module, torch.nn.Linear) and module.out_features == outputs:
            logits = _run(model, module.register_forward_hook(lambda _, __, out: marks.to(out).expand_as(out)))
            if logits.equal(marks.to(logits)):
                return name, module
    return None


def _input_of(layer: torch.nn.Linear, model: PreTrainedModel) -> torch.Tensor:
    """What a layer is given when a row goes through the model."""
    seen: list[torch.Tensor] = []
    _run(model, layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone())))
    return seen[0]


def _run(model: PreTrainedModel, hook: RemovableHandle) -> torch.Tensor:
    """Logits of a row of a few words, in eval mode, with a hook that is taken away afterwards."""
    import torch

    table: Any = model.get_input_embeddings()
    padding = getattr(model.config, "pad_token_id", None)
    ids = torch.tensor([[word for word in range(min(8, table.num_embeddings)) if word != padding]], device=model.device)
    training = model.training
    try:
        with torch.no_grad():
            return model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    finally:
        hook.remove()
        model.train(training)


def _names(config: Any, source: str) -> list[str]:
    """What a checkpoint calls its outputs, in their order."""
    names = {int(index): str(name) for index, name in config.id2label.items()}
    if sorted(names) != list(range(len(names))):
        found = ", ".join(map(str, sorted(names)))
        raise UserError(f"{source}: id2label in config.json must number the outputs from 0, not {found}")
    listed = [names[index] for index in range(len(names))]
    for name in listed:
        if listed.count(name) > 1:
            raise UserError(f"{source}: id2label in config.json has {name!r} twice")
    places = {str(name): int(index) for name, index in (config.label2id or {}).items()}
    if set(places) == set(listed) and any(places[name] != index for index, name in enumerate(listed)):
        raise UserError(f"{source}: id2label and label2id in config.json contradict each other")
    return listed


def _matched(names: Sequence[str], classes: Sequence[str]) -> Order | None:
    """For each class the place of its name; None unless the names are the classes, but for case and separators."""
    for spelled in (str, _plain):
        found, wanted = [spelled(name) for name in names], [spelled(name) for name in classes]
        if len(set(wanted)) == len(wanted) and sorted(found) == sorted(wanted):
            return tuple(found.index(name) for name in wanted)
    return None


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def _generic(names: Sequence[str]) -> bool:
    """Whether these are the names that transformers makes up."""
    return [name.casefold() for name in names] == [f"label_{index}" for index in range(len(names))]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
