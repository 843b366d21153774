"""`scala-lab landscape`: loss and accuracy around saved checkpoints, along lines and over planes."""

from __future__ import annotations

from scala_lab.commands.checkpoints import check_checkpoints, check_distinct, check_new_folder, parse_with_run_data
from scala_lab.commands.landscape_options import Landscape
from scala_lab.commands.samples import check_samples
from scala_lab.errors import UserError


def parse(args: list[str]) -> Landscape:
    """Flags; without --task, the data of the first run folder."""
    return parse_with_run_data(Landscape, args, prog="scala-lab landscape")


def run(options: Landscape) -> int:
    """Walk around every checkpoint, print a table, draw; 1 if an eigenvector has not converged."""
    _check(options)
    from scala_lab.commands.landscape_measure import explore
    from scala_lab.commands.landscape_report import show_views, write_views

    views = explore(options)
    show_views(views, options)
    write_views(views, options)
    return 0 if all(view.record.get("converged", True) for view in views) else 1


def _check(options: Landscape) -> None:
    check_checkpoints(options.checkpoints)
    check_distinct(options.checkpoints)
    check_samples(options.over, options.data)
    if options.directions == "between" and len(options.checkpoints) < 2:
        raise UserError("--directions between needs at least two checkpoints")
    for name in ("line_points", "plane_points"):
        if getattr(options, name) < 0 or getattr(options, name) == 1:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} must be at least 2, or 0 for none, not {getattr(options, name)}")
    if not options.line_points and not options.plane_points:
        raise UserError("--line-points and --plane-points are both 0: there is nothing to look at")
    low, high = options.x_span
    if not -float("inf") < low < high < float("inf"):
        raise UserError(f"--span must go from a lower to a higher number, not from {low:g} to {high:g}")
    if not 0 < options.tol < float("inf"):
        raise UserError(f"--tol must be positive, not {options.tol}")
    if options.max_products < 2:
        raise UserError(f"--max-products must be at least 2, not {options.max_products}: there are two eigenvectors")
    if options.out is None:
        raise UserError("--out is needed: the folder for figures and tables")
    check_new_folder(options.out)
