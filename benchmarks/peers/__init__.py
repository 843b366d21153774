"""The peers of the benchmarks, installed apart from the project."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scala_lab.data.tokens import cache_folder

REQUIREMENTS = Path(__file__).parent / "requirements.txt"


def peers_folder() -> Path:
    """Where they are once they are installed: a folder per list of versions and interpreter."""
    wanted = REQUIREMENTS.read_text() + sys.version
    return cache_folder() / "peers" / hashlib.sha256(wanted.encode()).hexdigest()[:12]


def add_peers() -> Path:
    """Make the peers importable: install them into the user's cache, once.

    Their folder stands last on the path, so that whatever the project has itself is taken from there.
    """
    folder = peers_folder()
    if not folder.is_dir():
        print(f"installing the peers into {folder} ...", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent))
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        try:
            subprocess.run([*install, "--target", str(temporary), "-r", str(REQUIREMENTS)], check=True)
            os.rename(temporary, folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return folder
