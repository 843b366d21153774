"""`scala-lab sharpness`: the top Hessian eigenvalues of saved checkpoints, with evidence."""

from __future__ import annotations

import os
import sys

from scala_lab.commands.checkpoints import (
    check_checkpoints,
    check_distinct,
    check_new_file,
    check_new_folder,
    parse_with_run_data,
)
from scala_lab.commands.samples import check_samples
from scala_lab.commands.sharpness_options import Sharpness
from scala_lab.errors import UserError


def parse(args: list[str]) -> Sharpness:
    """Flags; without --task, the data of the first run folder."""
    return parse_with_run_data(Sharpness, args, prog="scala-lab sharpness")


def run(options: Sharpness) -> int:
    """Measure every checkpoint, print a table, write what was asked for; 1 if anything has not converged."""
    _check(options)
    from scala_lab.commands.sharpness_measure import all_converged, measure_all
    from scala_lab.commands.sharpness_report import show_findings, write_findings
    from scala_lab.commands.sharpness_worker import measure_together
    from scala_lab.training.launch import WorkerFailure
    from scala_lab.training.world import check_devices, started_by_launcher

    check_devices(options.spec)
    together = options.spec.machine.workers > 1 and not started_by_launcher()
    try:
        findings, densities = (measure_together if together else measure_all)(options)
    except WorkerFailure as failure:
        print(f"scala-lab: error: {failure}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") == "0":
        show_findings(findings)
        write_findings(findings, densities, options.json_, options.out)
    return 0 if all(map(all_converged, findings)) else 1


def _check(options: Sharpness) -> None:
    check_checkpoints(options.checkpoints)
    check_distinct(options.checkpoints)
    check_samples(options.over, options.data)
    for name in ("repeats", "top_k", "workers"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    if options.max_products < options.top_k:
        raise UserError(f"--top-k {options.top_k} takes at least as many products: raise --max-products")
    if not 0 < options.tol < float("inf"):
        raise UserError(f"--tol must be positive, not {options.tol}")
    if options.solver == "pyhessian" and options.spec.machine.workers > 1:
        raise UserError("--solver pyhessian runs in one process: leave out --workers")
    if options.density and options.out is None:
        raise UserError("--density needs --out, the folder for its figure")
    check_new_file(options.json_)
    check_new_folder(options.out)
