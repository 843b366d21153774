"""Finding studies: by name among the modules of `studies`, or by the path of a file of the user's own.

A study's module has `STUDY = Study(...)`. Modules of `studies` whose name starts with an underscore hold what
several studies share. What `find_study` was given, the reference, is also what a report remembers a study by.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from scala_lab.errors import UserError, nearest
from scala_lab.study.declaration import Study

PACKAGE = "studies"


def study_names() -> list[str]:
    """Names of all studies in the package, by the alphabet; nothing is imported but the package."""
    package = importlib.import_module(PACKAGE)
    return sorted(found.name for found in pkgutil.iter_modules(package.__path__) if not found.name.startswith("_"))


def find_study(reference: str) -> Study:
    """The study of a name, or of a path that ends in .py.

    Raises:
        UserError: There is no such study or file, the file cannot be imported, or it has no `STUDY`.
    """
    if reference.endswith(".py"):
        return _study_of(_load_file(Path(reference)), reference)
    name = reference.replace("-", "_")
    names = study_names()
    if name not in names:
        raise UserError(f"unknown study {reference!r}: {nearest(name, names)} (a study of your own: its file, mine.py)")
    return _study_of(importlib.import_module(f"{PACKAGE}.{name}"), f"{PACKAGE}/{name}.py")


def all_studies() -> dict[str, Study]:
    """Every study of the package by name: figures and tables of the paper in their order, then those beyond it."""
    studies = {name: find_study(name) for name in study_names()}
    return dict(sorted(studies.items(), key=lambda item: place_in_paper(item[1])))


def place_in_paper(study: Study) -> tuple[int, int, str, str]:
    """Sorts studies by their source: figures by number, tables by number, other sources, then those without one."""
    found = re.search(r"(Fig|Table)\w*\.?\s*(\d+)\s*(\(\w\))?", study.source)
    if found:
        return (0 if found[1] == "Fig" else 1, int(found[2]), found[3] or "", study.name)
    return (2 if study.source else 3, 0, "", study.name)


def main(study: Study, argv: Sequence[str] | None = None) -> int:
    """What a study's module runs as a program: `python -m studies.sharpness` is `scala-lab study sharpness`.

    Args:
        study: The module's `STUDY`.
        argv: Flags of `scala-lab study`; default those of the program.

    Returns:
        The exit code.
    """
    from scala_lab.cli import main as run_command

    words = sys.argv[1:] if argv is None else list(argv)
    return run_command(["study", reference_of(study), *words])


def reference_of(study: Study) -> str:
    """What `find_study` finds a study by: the name of its module in `studies`, or its file."""
    module = sys.modules[study.cells.__module__]
    name = module.__spec__.name if module.__spec__ is not None else module.__name__
    if name.startswith(f"{PACKAGE}."):
        return name.removeprefix(f"{PACKAGE}.")
    return os.path.relpath(str(module.__file__))


def _study_of(module: ModuleType, where: str) -> Study:
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise UserError(f"{where} has no STUDY = Study(...)")
    if not re.fullmatch(r"[A-Za-z0-9_]+", study.name):
        raise UserError(f"{where}: the study's name {study.name!r} is part of file names: letters, digits and _ only")
    return study


def _load_file(file: Path) -> ModuleType:
    """Import a user's file under its own name, and let the processes that train find it under that name too."""
    if not file.is_file():
        raise UserError(f"study file {file} does not exist")
    name, path = file.stem, file.resolve()
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    _make_importable(path.parent)
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or spec.loader is None or spec.origin != str(path):
        taken = "is the name of another module" if spec is not None else "is no name that Python can import"
        raise UserError(f"study file {file}: {name!r} {taken}, rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        sys.modules.pop(name)
        raise
    except Exception as error:
        sys.modules.pop(name)
        raise UserError(f"study file {file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _make_importable(folder: Path) -> None:
    """Add a folder at the end of the module path, which processes started from here inherit."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
