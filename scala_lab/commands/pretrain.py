"""`scala-lab pretrain`: reproduce the embedded encoder, or check the one that is shipped."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scala_lab.errors import check_at_least

TOLERANCE = 0.01  # largest relative difference of held-out losses between machines that counts as the same encoder


@dataclass(frozen=True)
class Pretrain:
    """Pretrain the embedded encoder by masked language modelling on text of the grammar."""

    out: Path = Path("encoder")
    """Folder to write: new, or an earlier encoder's, which is replaced. `--model FOLDER` then fine-tunes it."""
    steps: int | None = None
    """Optimizer steps; default as many as the shipped encoder had."""
    seed: int = 0
    """Seed of the text, the masks and the weights."""
    threads: int | None = None
    """CPU threads; the same number gives the same bytes on one machine. Default as the shipped encoder."""
    check: bool = False
    """Train nothing: evaluate the shipped encoder and compare with its record."""


def run(options: Pretrain) -> int:
    """Run the command and return its exit code, 1 if the check fails."""
    return _check() if options.check else _pretrain(options)


def _pretrain(options: Pretrain) -> int:
    from scala_lab.models.loading import EMBEDDED
    from scala_lab.models.pretrain import Settings, check_folder, pretrain

    given = {"steps": options.steps, "threads": options.threads}
    check_at_least(1, **given)
    check_at_least(0, seed=options.seed)
    check_folder(options.out)
    settings = Settings(seed=options.seed, **{name: value for name, value in given.items() if value is not None})
    console = Console()
    console.print("writing the text ...")
    columns = (TextColumn("pretraining"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=settings.steps, loss=float("nan"))
        record = pretrain(options.out, settings, lambda step, loss: bar.update(task, completed=step, loss=loss))
    console.print(_summary(record))
    shipped = EMBEDDED / "model.safetensors"
    if shipped.is_file():
        same = (options.out / shipped.name).read_bytes() == shipped.read_bytes()
        console.print(f"weights {'equal' if same else 'differ from'} the shipped encoder's, byte for byte")
    console.print(f"written to {options.out}")
    return 0


def _check() -> int:
    from scala_lab.models.loading import EMBEDDED
    from scala_lab.models.pretrain import heldout, read_encoder

    model, tokenizer, record = read_encoder(EMBEDDED)
    measured = heldout(model, tokenizer, record["mask_rate"])
    difference = abs(measured["heldout_loss"] / record["heldout_loss"] - 1)
    console, agreement = Console(), "within" if difference <= TOLERANCE else "MORE THAN"
    console.print(_summary(measured))
    recorded = f"recorded loss {record['heldout_loss']:.4f}, difference {difference:.3%}"
    console.print(f"{recorded}: {agreement} {TOLERANCE:.0%}")
    return 0 if difference <= TOLERANCE else 1


def _summary(record: dict[str, Any]) -> str:
    loss, accuracy, pairs = (record[f"heldout_{name}"] for name in ("loss", "accuracy", "pair_accuracy"))
    return f"held-out loss {loss:.4f}, masked accuracy {accuracy:.1%}, pairs told apart {pairs:.1%}"
