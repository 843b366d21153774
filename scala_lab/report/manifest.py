"""`report.json`: what a report is of, so that it can be rebuilt from its own folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scala_lab.errors import UserError
from scala_lab.files import write_json
from scala_lab.study.profiles import Profile, find_profile

MANIFEST_FILE = "report.json"


@dataclass(frozen=True)
class Manifest:
    """What a report is of.

    Attributes:
        profile: Name of the profile.
        data_dir: As given on the command line.
        model: As given on the command line.
        model_is_folder: Whether that was a folder when the runs were trained.
        device: The device that `auto` meant when the runs were trained: part of their ids.
        studies: References of the studies (see `scala_lab.study.discovery`), in the order of the page.
        command: The last command that added to the report.
    """

    profile: str
    data_dir: str | None = None
    model: str | None = None
    model_is_folder: bool = False
    device: str = "cpu"
    studies: tuple[str, ...] = ()
    command: str = ""

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest in a folder, or None if it holds none."""
        file = folder / MANIFEST_FILE
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return cls(**{**values, "studies": tuple(values["studies"])})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} is damaged or was written by another version ({error})") from None

    def write(self, folder: Path) -> None:
        """Write `report.json`."""
        write_json(folder / MANIFEST_FILE, {**asdict(self), "studies": list(self.studies)})

    def load_profile(self) -> Profile:
        """The profile with data, model and device as they were.

        An encoder from a folder that is absent here goes by the folder's name, as it does in run ids, so that these
        come out as they were.
        """
        model = self.model
        if model is not None and self.model_is_folder and not Path(model).expanduser().is_dir():
            model = Path(model).name
        profile = find_profile(self.profile).with_data(Path(self.data_dir) if self.data_dir else None, model)
        return replace(profile, settings={"device": self.device, **profile.settings})

    def describes_same_runs(self, other: Manifest) -> bool:
        """Whether studies of both belong in one report."""
        return (self.profile, self.model, self.device) == (other.profile, other.model, other.device)
