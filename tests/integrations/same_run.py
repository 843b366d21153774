"""One run by our trainer and by a ScalaTrainer: the same weights, rows, order and schedule, in float64."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from scala_lab.config import RunSpec
from scala_lab.integrations.transformers import ScalaConfig, ScalaTrainer
from scala_lab.methods.recipes import RECIPES
from scala_lab.optim.build import rate_factor
from scala_lab.training.trainer import Training
from tests.training.recipe_runs import make_training, recipe_spec

STEPS = 20
BOTH = ("scala", "sam")  # methods that two processes train without accumulation too


def spec_of(method: str, model: Path, rows: Path, **changes: object) -> RunSpec:
    """A run of 20 steps, the noise from the fifth on: 40 rows at B=16 are 3 steps an epoch, the last of 8 rows."""
    changes = {"batch_size": 16, "epochs": 7, "max_steps": STEPS, **changes}
    if "delay" in RECIPES[method].option_values():
        changes.setdefault("delay", 1.4)
    return recipe_spec(method, model, rows, **changes)


def features(training: Training) -> list[dict[str, object]]:
    """The training rows as a dataset of transformers has them."""
    split = training.data.train
    rows = []
    for row in range(len(split)):
        one = split.take([row])
        ids = one.ids.tolist()
        label = one.labels[0].item()
        kinds = {"token_type_ids": [0] * len(ids)}
        rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), **kinds, "labels": label})
    return rows


class Order(torch.utils.data.Sampler):
    """The rows in the order of our trainer, epoch after epoch."""

    def __init__(self, training: Training) -> None:
        self.plan, self.epoch = copy.copy(training.plan), -1
        self.seed = training.spec.seed

    def __len__(self) -> int:
        return len(self.plan.lengths)

    def __iter__(self):
        import numpy as np

        self.epoch += 1
        return iter(np.random.default_rng([self.seed, self.epoch]).permutation(len(self)).tolist())


def settings(
    training: Training, folder: Path, rows_at_once: int, accumulation: int, **changes: object
) -> dict[str, object]:
    """The arguments of a trainer of transformers for this run."""
    spec = training.spec
    arguments: dict[str, object] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": rows_at_once,
        "gradient_accumulation_steps": accumulation,
        "num_train_epochs": spec.optim.epochs,
        "max_steps": spec.optim.max_steps or -1,
        "learning_rate": training.rate,
        "weight_decay": spec.optim.weight_decay,
        "max_grad_norm": spec.optim.clip_norm or 0.0,
        "seed": spec.seed,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "average_tokens_across_devices": False,
    }
    args = TrainingArguments(**{**arguments, **changes})
    collator = DataCollatorWithPadding(training.data.tokenizer)
    return {"args": args, "train_dataset": features(training), "data_collator": collator}


def as_ours(kind: type[Trainer], training: Training) -> type[Trainer]:
    """A trainer with the order and the schedule of ours."""

    class Same(kind):  # type: ignore[misc,valid-type]
        def _get_train_sampler(self, *_: object) -> Order:
            return Order(training)

        def create_scheduler(self, num_training_steps: int, optimizer: object = None) -> object:
            def factor(step: int) -> float:
                return rate_factor(min(step, num_training_steps - 1), num_training_steps, training.spec.optim.warmup)

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
            return self.lr_scheduler

    return Same


def drop_in(training: Training, folder: Path, rows_at_once: int, accumulation: int) -> torch.nn.Module:
    """The model after the run by a ScalaTrainer."""
    model = copy.deepcopy(training.model)
    config = ScalaConfig(**vars(training.spec.recipe))
    trainer = as_ours(ScalaTrainer, training)(
        model=model, config=config, **settings(training, folder, rows_at_once, accumulation)
    )
    trainer.train()
    return trainer.model


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    """As one of two processes of torchrun, train by every method and write the weights."""
    from safetensors.torch import save_file

    folder, model, rows = map(Path, sys.argv[1:4])
    found = {}
    for method in RECIPES:
        training = make_training(spec_of(method, model, rows))
        for rows_at_once, accumulation in ((8, 1), (1, 8)) if method in BOTH else ((1, 8),):
            trained = drop_in(training, folder / "trainer", rows_at_once, accumulation)
            found[f"{method} {accumulation}"] = flat(trained)
    if torch.distributed.get_rank() == 0:
        save_file(found, folder / "weights.safetensors")


if __name__ == "__main__":
    main()
