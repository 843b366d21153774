"""What a study is made of: the runs it needs, the tables, figures and claims it returns, profiles and statistics."""

from scala_lab.study.api import Cell, DataFrame, Drawing, Findings, RunResult, Study, Tabulation, declare, main
from scala_lab.study.profiles import Profile

__all__ = ["Cell", "DataFrame", "Drawing", "Findings", "Profile", "RunResult", "Study", "Tabulation", "declare", "main"]
