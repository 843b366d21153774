"""The settings of a run: frozen dataclasses from which flags, TOML files and run ids derive.

The docstring under each field is its help text on the command line. A field that is None takes its value from the
recipe, the optimizer or the machine when the spec is resolved. Field names are unique over all parts, so that a flag, a
TOML key and a keyword of `RunSpec.of` are the same word.

Example:
    >>> spec = RunSpec.of(task="mini-sst2", method="lamb", batch_size=256)
    >>> spec.recipe.method, spec.batches.batch_size
    ('lamb', 256)
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import math
import operator
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import tyro

from scala_lab.errors import UserError, nearest
from scala_lab.files import read_toml
from scala_lab.machine import default_threads, pick_device
from scala_lab.methods.recipes import FREELB_PUBLISHED, RECIPES, STEP_DEFAULTS, find_recipe

RESULT_VERSION = 4  # part of every run id; raise it when a change of the code changes the results of a spec


@dataclass(frozen=True)
class DataSpec:
    """The task and its rows."""

    task: str = "mini-sst2"
    """A GLUE task (sst2 qnli mnli qqp stsb mrpc rte cola), an embedded one (mini-sst2 mini-qnli mini-mnli
    mini-qqp mini-stsb), or your own CSV, TSV, JSONL or parquet file."""
    data_dir: Path | None = None
    """Folder in the classic GLUE layout (SST-2/train.tsv, ...); without it GLUE comes from the hub."""
    text_columns: tuple[str, ...] = ()
    """Your own file: the one or two columns that hold the text."""
    label_column: str | None = None
    """Your own file: the column that holds the label."""
    regression: bool = False
    """Your own file: the label is a number to predict, not a class."""
    eval_file: Path | None = None
    """Your own file: a second file to evaluate on; without it a seeded tenth of the rows is held out."""
    label_names: tuple[str, ...] = ()
    """The task's classes in the order of a trained checkpoint's outputs, where its config.json does not name them."""
    train_samples: int | None = None
    """Train on this many rows, drawn with data-seed; default all."""
    eval_samples: int | None = None
    """Evaluate on this many rows, drawn with data-seed; default all."""
    evaluate: Literal["epochs", "end"] = "epochs"
    """Evaluate after every epoch, or at the end only."""
    heldout_samples: int = 0
    """Hold out this many train rows, and evaluate on them too at the end."""
    tuning_samples: int = 0
    """Hold out this many other train rows to choose settings on, and evaluate on them too at the end."""
    data_seed: int = 0
    """Seed of the choice of rows; separate from the run's seed, so that runs with other seeds have the same rows."""
    max_length: int = 128
    """Truncate inputs to this many tokens."""


@dataclass(frozen=True)
class EncoderSpec:
    """The pretrained model."""

    model: str = "embedded"
    """A hub name, a folder, `embedded` (the encoder in this package) or `minilm` (the optional package)."""
    dropout: float | None = None
    """Set all dropout rates of the encoder; default those of its config; 0 also stops the jitter of expert routers."""


@dataclass(frozen=True)
class RecipeSpec:
    """How a micro-batch becomes a gradient. Options that are not set come from the method's recipe."""

    method: str = "scala"
    """plain, lamb, scala, scala-effective, two-draws, gaussian, rdrop, freelb, sam, asam or ngd."""
    delay: float | None = None
    """t_s: epochs (0-based, fractions allowed) of plain steps before the noise, or R-Drop's second pass, starts."""
    delay_rule: Literal["fixed", "settled"] | None = None
    """fixed: the noise starts at t_s; settled: as soon as the training loss has settled, at t_s at the latest."""
    lambda_: Annotated[float | None, tyro.conf.arg(name="lambda")] = None
    """Weight of the noise term beside the task loss; 0 skips its passes."""
    rho: float | None = None
    """Step size of the ascent on the noise."""
    omega: float | None = None
    """Radius of the noise: every coordinate is clipped to [-omega, omega]."""
    sigma: float | None = None
    """Standard deviation of the Gaussian start of the noise."""
    pga_steps: int | None = None
    """T: number of projected gradient ascent steps."""
    pga: Literal["auto", "exact", "fused"] | None = None
    """How the gradient of the ascent is computed. exact: by extra passes; fused: from the clean backward pass, for one
    ascent step with masks shared or off; auto: fused where it is valid and cheaper."""
    ascent: Literal["literal", "normalized"] | None = None
    """literal: rho * g; normalized: rho * g / max|g| per token."""
    target: Literal["LP", "GT"] | None = None
    """What the ascent maximises. LP: divergence from the clean prediction; GT: loss to the true label."""
    noise: Literal["pga", "gaussian", "none"] | None = None
    """pga: adversarial; gaussian: N(0, omega^2) without ascent; none."""
    masks: Literal["independent", "shared", "off"] | None = None
    """Dropout masks of a sample in the passes of a step: independent draws, the same in all of them, or no dropout."""
    label_gradient: bool | None = None
    """Let the gradient flow through the clean prediction in the noise term as well."""
    alpha: float | None = None
    """R-Drop: weight of the divergence of the two passes beside their mean task loss."""
    adv_passes: int | None = None
    """FreeLB: number K of passes, with K-1 ascents between them."""
    adv_norm: Literal["l2", "linf"] | None = None
    """FreeLB: norm of the ball that the noise stays in."""
    adv_lr: float | None = None
    """FreeLB: step size of an ascent; default as published for the task."""
    adv_init: float | None = None
    """FreeLB: size of the random start; default as published for the task."""
    adv_max_norm: float | None = None
    """FreeLB: radius of the ball, 0 for none; default as published for the task."""
    adv_scale: float | None = None
    """FreeLB: factor on adv-lr, adv-init and adv-max-norm."""
    radius_unit: Literal["absolute", "embedding"] | None = None
    """Unit of rho, omega and FreeLB's radii. absolute: as published; embedding: the median norm of the pretrained word
    embeddings, per coordinate where the radius is."""
    sam_rho: float | None = None
    """SAM: radius of the ascent on the weights."""
    sam_m: int | None = None
    """SAM: number m of samples that share one ascent; default the whole batch."""
    sam_adaptive: bool | None = None
    """SAM: scale the ascent of each weight by its size, as ASAM does."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the step function of a resolved recipe."""
        return {name: value for name, value in vars(self).items() if name != "method" and value is not None}


@dataclass(frozen=True)
class OptimSpec:
    """How a gradient becomes an update."""

    optimizer: Literal["adamw", "lamb", "ngd"] | None = None
    """Override the optimizer of the method's recipe."""
    lr: float | None = None
    """Peak learning rate; default a rate that suits the optimizer, the encoder's width and the batch size."""
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """none: lr is used as given; sqrt and linear: lr is the rate at B=32 and grows with the batch size."""
    epochs: int = 6
    """Passes over the training rows."""
    max_steps: int | None = None
    """Stop after this many steps; the learning rate's schedule spans these."""
    warmup: float = 0.1
    """Share of all steps over which the rate rises linearly, before it falls linearly to 0."""
    weight_decay: float = 0.01
    """Decoupled weight decay of everything but biases and LayerNorm."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    eps: float | None = None
    """Added to the root of the second moment; default 1e-8 for adamw, 1e-6 for lamb."""
    clip_norm: float | None = None
    """Clip the gradient's norm to this; 0 for no clipping; default 1 for adamw, 0 for the others."""
    max_weight_norm: float = 10.0
    """U of nu(c) = max(L, min(c, U)), the weight norm that lamb and ngd scale by; inf for no clip."""
    min_weight_norm: float = 0.0
    """L of nu(c)."""
    groups: Literal["tensor", "layer"] | None = None
    """What shares one adaptive rate of lamb or ngd: a transformer layer (default) or a tensor."""
    adapt_all: bool = False
    """lamb: adapt the rate of biases and LayerNorm too."""


@dataclass(frozen=True)
class BatchSpec:
    """How many samples a step has, and how many run at once."""

    batch_size: int = 1024
    """Samples per optimizer step, over all workers."""
    micro_batch: int = 64
    """Maximum number of samples that a worker runs at once; it changes speed and memory, not the gradient."""


@dataclass(frozen=True)
class MachineSpec:
    """Workers, threads, device and precision."""

    workers: int = 1
    """Number of data-parallel processes; they are started for you unless torchrun has started them."""
    threads: int | None = None
    """CPU threads per worker; default OMP_NUM_THREADS (which torchrun sets to 1), else an even share of the cores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA if available."""
    precision: Literal["float32", "tf32", "bf16", "fp16", "float64"] = "float32"
    """tf32: TF32 matrix products, on GPUs of compute capability 8.0 or newer. bf16, fp16: autocast with float32
    weights, fp16 with a dynamic loss scale; they round activations to 8 and 11 bits, and with them noise as small as
    the paper's literal 1e-5."""

    def resolved(self) -> MachineSpec:
        """Return this with threads and device filled in, where the machine decides them."""
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.workers))
        threads = default_threads(here) if self.threads is None else self.threads
        device: Any = pick_device("auto").type if self.device == "auto" else self.device
        return replace(self, threads=threads, device=device)


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines a run's result."""

    data: DataSpec = field(default_factory=DataSpec)
    encoder: EncoderSpec = field(default_factory=EncoderSpec)
    recipe: RecipeSpec = field(default_factory=RecipeSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    batches: BatchSpec = field(default_factory=BatchSpec)
    machine: MachineSpec = field(default_factory=MachineSpec)
    seed: int = 0
    """Seed of the new head, the order of samples, dropout and noise."""

    @classmethod
    def of(cls, **values: Any) -> RunSpec:
        """Return a spec from flat keywords (`lambda_` or `**{"lambda": x}`); unknown ones are errors."""
        return _change(cls(), values, source="RunSpec.of")

    def override(self, **values: Any) -> RunSpec:
        """Return this spec with some flat keywords changed."""
        return _change(self, values, source="override")

    @classmethod
    def from_toml(cls, path: Path) -> RunSpec:
        """Read a spec from a TOML file with flat keys, or with one table per part."""
        return cls.from_dict(read_config(path), source=str(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "spec") -> RunSpec:
        """Return the spec of a table like that of `to_dict`; `source` begins the sentence on a mistake in it."""
        return _change(cls(), values, source=source)

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, ready for JSON, which has no number for infinity."""

        def plain(value: Any) -> Any:
            value = list(value) if isinstance(value, tuple) else value
            return str(value) if isinstance(value, Path) or value == math.inf else value

        return asdict(self, dict_factory=lambda pairs: {name.rstrip("_"): plain(value) for name, value in pairs})

    def resolved(self) -> RunSpec:
        """Return this spec, checked, with the defaults of the recipe, the optimizer and the machine filled in."""
        return _resolve(replace(self, machine=self.machine.resolved()))

    @property
    def run_id(self) -> str:
        """Hash of the resolved spec, with the names of files but not their folders."""
        return _hash(self.resolved(), _is_folder(self.encoder.model))

    @property
    def prefix_id(self) -> str:
        """Hash of all but the method's options: runs that share it are equal as long as both take plain steps."""
        return _hash(self.resolved(), _is_folder(self.encoder.model), with_recipe=False)

    @property
    def name(self) -> str:
        """Method, task, batch size, seed and the start of the id."""
        method, task = self.recipe.method, Path(self.data.task).stem
        return f"{method}-{task}-b{self.batches.batch_size}-s{self.seed}-{self.run_id[:8]}"


def read_config(path: Path) -> dict[str, Any]:
    """Read a TOML file of settings."""
    try:
        return read_toml(Path(path))
    except FileNotFoundError:
        raise UserError(f"config file {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"config file {path} cannot be read as TOML: {error}") from None


@functools.lru_cache(maxsize=1 << 16)  # studies resolve the same specs very often
def _resolve(spec: RunSpec) -> RunSpec:
    optimizer = spec.optim.optimizer or find_recipe(spec.recipe.method).optimizer
    eps, clip_norm, groups = (1e-8, 1.0, "tensor") if optimizer == "adamw" else (1e-6, 0.0, "layer")
    defaults = {"optimizer": optimizer, "eps": eps, "clip_norm": clip_norm, "groups": groups}
    given = {name: value for name, value in vars(spec.optim).items() if value is not None}
    resolved = spec.override(**_method_options(spec), **defaults | given)
    _check(resolved)
    return resolved


def _method_options(spec: RunSpec) -> dict[str, Any]:
    """Return what the user set, else FreeLB's published settings, else the recipe's own."""
    recipe = find_recipe(spec.recipe.method)
    defaults = recipe.option_values()
    if recipe.step == "freelb":
        defaults |= FREELB_PUBLISHED.get(spec.data.task.removeprefix("mini-"), {})
    given = {name.rstrip("_"): value for name, value in spec.recipe.options.items()}
    for name in given:
        if name not in defaults:
            takers = [other.name for other in RECIPES.values() if name in STEP_DEFAULTS[other.step]]
            raise UserError(f"method {recipe.name!r} has no option {name!r}; methods that have it: {', '.join(takers)}")
    return defaults | given


@functools.lru_cache(maxsize=1 << 16)
def _hash(resolved: RunSpec, model_is_folder: bool, with_recipe: bool = True) -> str:
    values = resolved.to_dict()
    if not with_recipe:
        del values["recipe"]
    data = values["data"]
    del data["data_dir"]
    data["task"] = Path(data["task"]).name
    data["eval_file"] = data["eval_file"] and Path(data["eval_file"]).name
    for name in ("label_names", "tuning_samples", "evaluate"):  # count only where they are set
        if data[name] in ([], 0, "epochs"):
            del data[name]
    if model_is_folder:
        values["encoder"]["model"] = Path(resolved.encoder.model).name
    return hashlib.sha256(json.dumps([RESULT_VERSION, values], sort_keys=True).encode()).hexdigest()[:12]


def _is_folder(model: str) -> bool:
    """Whether a model is a folder, not a hub name, which has at most one slash."""
    return model.startswith(("/", ".", "~")) or model.count("/") > 1 or Path(model).expanduser().is_dir()


_MINIMUM = {
    1: "batch_size micro_batch epochs workers threads pga_steps adv_passes train_samples eval_samples max_steps sam_m",
    0: "heldout_samples tuning_samples delay lambda alpha rho omega sigma seed data_seed weight_decay clip_norm eps "
    "min_weight_norm max_weight_norm adv_lr adv_init adv_max_norm adv_scale sam_rho warmup dropout beta1 beta2",
    4: "max_length",
}


def _check(spec: RunSpec) -> None:
    values = {name: value for name, value in flat_settings(spec).items() if value is not None}

    def refuse(name: str, problem: str) -> NoReturn:
        raise UserError(f"--{name.replace('_', '-')} must be {problem}")

    for minimum, names in _MINIMUM.items():
        for name in names.split():
            if name in values and not values[name] >= minimum:  # `not >=` also refuses nan
                refuse(name, f"at least {minimum}, not {values[name]}")
    for name, value in values.items():
        if value == math.inf and name not in ("delay", "max_weight_norm"):
            refuse(name, "a finite number")
        if name in ("seed", "data_seed") and value >= 2**63:
            refuse(name, f"below 2^63, not {value}")
        if name in ("warmup", "dropout", "beta1", "beta2") and value >= 1:
            refuse(name, f"below 1, not {value}")
    lr, batch_size, workers, scaling = spec.optim.lr, values["batch_size"], values["workers"], values["lr_scaling"]
    if lr is not None and not lr > 0:
        refuse("lr", f"a positive number, not {lr}")
    if batch_size < workers:
        why = "some workers would never have a sample"
        raise UserError(f"--batch-size {batch_size} is smaller than --workers {workers}: {why}")
    if values["min_weight_norm"] > values["max_weight_norm"]:
        raise UserError("--min-weight-norm must not be above --max-weight-norm")
    if lr is None and scaling != "none":
        raise UserError(f"--lr-scaling {scaling} needs --lr, the rate at batch size 32")
    check_noise_starts(spec)


def check_noise_starts(spec: RunSpec, rows: int | None = None) -> None:
    """Refuse a resolved spec whose run ends before a fixed t_s: it would be plain training under the method's name.

    Without the number of training rows only the number of epochs is checked.
    """
    recipe, optim = spec.recipe, spec.optim
    if recipe.delay is None or recipe.delay_rule == "settled" or recipe.lambda_ == 0:
        return
    if rows is None:
        late, length = recipe.delay >= optim.epochs, f"--epochs {optim.epochs}"
    else:
        steps, per_epoch = planned_steps(spec, rows), math.ceil(rows / spec.batches.batch_size)
        late, length = (steps - 1) / per_epoch < recipe.delay, f"{steps} steps, {per_epoch} per epoch,"
    if late:
        raise UserError(
            f"method {recipe.method!r} starts its noise after --delay {recipe.delay:g} epochs, and a run of {length} "
            "ends before: give a smaller --delay or more epochs, or train without noise (--method lamb or --lambda 0)"
        )


def planned_steps(spec: RunSpec, rows: int) -> int:
    """Return the steps of a run on that many training rows; the last batch of an epoch may be smaller."""
    steps = spec.optim.epochs * math.ceil(rows / spec.batches.batch_size)
    return min(steps, spec.optim.max_steps or steps)


def plain_epochs(spec: RunSpec) -> float:
    """Return for how many epochs the run of a resolved spec is known to take plain steps.

    All epochs of plain methods and with lambda 0, t_s of methods with a fixed delay, else 0.
    """
    recipe, epochs = spec.recipe, float(spec.optim.epochs)
    if recipe.lambda_ == 0 or find_recipe(recipe.method).step == "plain":
        return epochs
    return 0.0 if recipe.delay is None or recipe.delay_rule == "settled" else min(recipe.delay, epochs)


def steps_before(epoch: float, spec: RunSpec, rows: int) -> int:
    """Return how many steps of a run begin before an epoch (0-based, fractions allowed), as a delay counts them."""
    per_epoch = math.ceil(rows / spec.batches.batch_size)
    return bisect.bisect_left(range(planned_steps(spec, rows)), epoch, key=lambda step: step / per_epoch)


@functools.cache  # most of the time of resolving a spec, if it is not cached
def setting_types() -> dict[str, tuple[str, Any]]:
    """Return by flat name the path of every setting in a spec (`lambda` is recipe.lambda_) and its type."""
    parts = typing.get_type_hints(RunSpec)
    paths = {
        name.rstrip("_"): (f"{part}.{name}", hint)
        for part, kind in parts.items()
        if is_dataclass(kind)
        for name, hint in typing.get_type_hints(kind).items()
    }
    return paths | {name: (name, hint) for name, hint in parts.items() if not is_dataclass(hint)}


def flat_settings(spec: RunSpec) -> dict[str, Any]:
    """Return all settings of a spec by flat name, in order."""
    return {name: operator.attrgetter(path)(spec) for name, (path, _) in setting_types().items()}


def _change(spec: RunSpec, values: Mapping[str, Any], source: str) -> RunSpec:
    """Return a copy of `spec` with settings changed; keys are flat names, or parts with a table of them."""
    settings, parts = setting_types(), {path.rpartition(".")[0] for path, _ in setting_types().values()} - {""}
    changes: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        table, where, valid = {key: value}, "", [*settings, *parts]
        if key in parts and isinstance(value, Mapping):
            table, where = dict(value), f" in [{key}]"
            valid = [name for name, (path, _) in settings.items() if path.startswith(f"{key}.")]
        for given, setting in table.items():
            name = given.rstrip("_")
            if name not in settings or name not in valid:
                raise UserError(f"{source}: unknown key {given!r}{where}: {nearest(given, valid)}")
            path, hint = settings[name]
            part, _, attribute = path.rpartition(".")
            changes.setdefault(part, {})[attribute] = as_type(setting, hint, f"{source}: {name}")
    top = changes.pop("", {})
    return replace(spec, **top, **{part: replace(getattr(spec, part), **change) for part, change in changes.items()})


def as_type(value: Any, hint: Any, where: str) -> Any:
    """Return the value as its field's type, or raise an error that says what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else as_type(value, hint, where)
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"{where} is {value!r}: {nearest(str(value), arguments)}")
        return value
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise UserError(f"{where} must be a list of strings, not {value!r}")
        return tuple(as_type(item, arguments[0], where) for item in items)
    accepted = {Path: (str, Path), str: (str, Path), float: (int, float)}.get(hint, hint)
    if isinstance(value, accepted) and not (isinstance(value, bool) and hint is not bool):
        return hint(value)
    if hint is float and value == "inf":
        return math.inf
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}[hint]
    raise UserError(f"{where} must be {expected}, not {value!r}")
