"""Table 2: which method is most accurate at one large batch size?

Beside the paper's three stand methods that a reader would ask for today: SAM, FreeLB, R-Drop and ScaLA with noise that
acts.
"""

from functools import partial

from scala_lab.study import Cell, DataFrame, Findings, Profile, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import paired_difference
from scala_lab.study.tables import accuracy_findings
from scala_lab.study.variants import BASELINE, EFFECTIVE, FREELB, LAMB, RDROP, SAM, SCALA_OTHER, SCALA_TUNED, arm_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, effect, no_worse, record
from studies._paper_tables import paper_table

INDEX = ("model", "method", "batch_size")
RIVALS = (EFFECTIVE, FREELB, SAM, RDROP)
METHODS = (BASELINE, LAMB, SCALA_TUNED, SCALA_OTHER, *RIVALS)

C10 = Claim(
    id="C10",
    statement="At one large batch size ScaLA is more accurate than LAMB and the baseline, and LAMB no worse than the "
    "baseline.",
    paper="89.4 / 88.6 / 88.4 (BERT), 92.9 / 92.1 / 92.1 (RoBERTa)",
    rule="ScaLA minus LAMB and ScaLA minus baseline are above 0, and not below half of the paper's 0.8 "
    f"and 1.0 points; LAMB minus baseline is not below -{EQUAL} points. ScaLA has the one of the paper's two t_s that "
    "is better on tuning rows; the other one and other methods are shown and decide nothing.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return every method at its tuned settings, for every model of the profile."""
    return arm_cells(profile, METHODS, profile.large_batch, models=profile.models)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare steps and accuracy by method."""
    return accuracy_findings(
        profile,
        frame,
        [c10],
        caption=f"Table 2: steps and accuracy (%) of large-batch methods at B={profile.large_batch}.",
        note="Baseline, FreeLB and SAM train with AdamW, the others with LAMB.",
        index=INDEX,
        shown=("steps", "score", "dev"),
        against=LAMB.method,
        title=f"Methods at B={profile.large_batch}",
        tables=[paper_table(2)],
        found="ScaLA differs from LAMB by {} and from the baseline by {}.",
    )


def c10(frame: DataFrame) -> ClaimRecord:
    """Compare ScaLA with LAMB and the baseline, LAMB with the baseline, and the other methods with LAMB."""
    scala, other, lamb, baseline = (variant.method for variant in (SCALA_TUNED, SCALA_OTHER, LAMB, BASELINE))
    minus = partial(paired_difference, frame)
    parts = [
        effect("ScaLA minus LAMB", minus(scala, lamb), 0.8),
        effect("ScaLA minus baseline", minus(scala, baseline), 1.0),
        no_worse("LAMB minus baseline", minus(lamb, baseline), EQUAL, paper=0.2),
        effect(f"{other} minus LAMB", minus(other, lamb), 0.8, contextual=True),
    ]
    for rival in (variant.method for variant in RIVALS):
        if (frame["method"] == rival).any():
            parts.append(effect(f"{rival} minus LAMB", minus(rival, lamb), None, EQUAL, contextual=True))
    return record(C10, parts, accuracy_gates(frame, (scala, lamb, baseline)))


STUDY = declare(
    __name__,
    title="Large-batch methods",
    question="Which method is most accurate at one large batch size?",
    source="Table 2",
    paper_found="Averages at B=1K: ScaLA 89.4, LAMB 88.6, baseline 88.4 (BERT-base); 92.9, 92.1, 92.1 (RoBERTa-large).",
)
