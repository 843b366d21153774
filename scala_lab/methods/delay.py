"""When the noise starts: t_s as given, or earlier, once the training loss has settled.

The paper finds that noise from the first step on is spent on a model that is still far from its final weights, and
leaves open how t_s may be chosen during training. `delay_rule="settled"` is one answer, from numbers that training
has anyway: the mean task loss over windows of half an epoch, L_0, L_1, ... The noise starts after window k when

    L_0 - L_k >= FALLEN * L_0                  the loss has fallen, warm-up is over, and
    L_(k-1) - L_k < SLOWED * (L_0 - L_k)       the last window's share of the fall is small,

and at epoch t_s at the latest. Losses are sums over the whole global batch, equal on all workers, so all of them
start at the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOWS_PER_EPOCH = 2
FALLEN = 0.05
SLOWED = 0.1


@dataclass
class Settling:
    """Watches the training loss; its fields are plain, so that a saved run goes on watching.

    Attributes:
        window: Steps per window.
        means: Mean loss of each window so far.
        losses: Losses of the window that is open.
        settled: Whether the loss has settled; it stays so.
    """

    window: int
    means: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    settled: bool = False

    @classmethod
    def over(cls, steps_per_epoch: int) -> Settling:
        """With windows of half an epoch, of one step at least."""
        return cls(max(1, steps_per_epoch // WINDOWS_PER_EPOCH))

    def hear(self, loss: float) -> None:
        """Take the mean task loss of a step."""
        if self.settled:
            return
        self.losses.append(loss)
        if len(self.losses) == self.window:
            self.means.append(sum(self.losses) / self.window)
            self.losses = []
            self.settled = self._has_settled()

    def _has_settled(self) -> bool:
        if len(self.means) < 2:
            return False
        first, before, last = self.means[0], self.means[-2], self.means[-1]
        fall = first - last
        return fall >= FALLEN * first and before - last < SLOWED * fall
