"""A nonconvex minimax problem in groups of parameters whose every constant is known.

    f(x, y) = sum_i a_i sum_j [ phi(x_ij) + y_j sin(x_ij) ] - 1/2 sum_j c_j y_j^2,     |y_j| <= omega
    phi(u)  = sqrt(1 + u^2) - 1 + bumps * sin(u)^2

Group i is row x_i of x. All groups meet the same y, so they are coupled in g(x) = max_y f(x, y), as the layers of a
network are by its noise. The theorem's assumptions hold as they are printed:

- The gradient of group i depends on x_i and y alone, with Lipschitz constant alpha_i = a_i * (1 + 2 bumps + omega).
  (The printed assumption bounds it by ||x_i - x_i'|| of the same group, which says just that.)
- |df/dx_ij| <= G = max a_i * (1 + bumps + omega).
- f is nonconvex in x: phi has local minima for bumps > 1/2.
- f(x, .) is strongly concave with C = min c_j and smooth with S = max c_j, so that the lemma on the ascent applies.
- Stochastic gradients are unbiased, with E ||noise of group i||^2 = sigma_i^2 / b for b samples. A sample's noise is
  a centred exponential: skewed, so that the mean direction of single samples differs from the direction of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MinimaxProblem:
    """See the module. Arrays have shapes (..., groups H, coordinates D) for x and (..., D) for y.

    Attributes:
        scales_H: a_i.
        concavity_D: c_j.
        omega: Radius of the box that holds y.
        bumps: Depth of phi's local minima.
        noise: sigma_i / a_i.
    """

    scales_H: np.ndarray
    concavity_D: np.ndarray
    omega: float = 1.0
    bumps: float = 1.2
    noise: float = 8.0

    @property
    def alphas_H(self) -> np.ndarray:
        """alpha_i: Lipschitz constants of the groups' gradients."""
        return self.scales_H * (1 + 2 * self.bumps + self.omega)

    @property
    def kappa_alpha(self) -> float:
        """Largest alpha_i over the smallest."""
        return float(self.alphas_H.max() / self.alphas_H.min())

    @property
    def gradient_bound(self) -> float:
        """G: no coordinate of the gradient exceeds it."""
        return float(self.scales_H.max()) * (1 + self.bumps + self.omega)

    @property
    def deviations_H(self) -> np.ndarray:
        """sigma_i: root mean square length of the noise of one sample in each group."""
        return self.noise * self.scales_H

    def value(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """f(x, y)."""
        phi = np.sqrt(1 + x**2) - 1 + self.bumps * np.sin(x) ** 2
        return (self.scales_H @ phi + y * self.pull(x) - 0.5 * self.concavity_D * y**2).sum(-1)

    def gradient_x(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """df/dx."""
        slope = x / np.sqrt(1 + x**2) + self.bumps * np.sin(2 * x) + y[..., None, :] * np.cos(x)
        return self.scales_H[:, None] * slope

    def gradient_y(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """df/dy."""
        return self.pull(x) - self.concavity_D * y

    def pull(self, x: np.ndarray) -> np.ndarray:
        """sum_i a_i sin(x_ij): what draws y_j away from 0."""
        return self.scales_H @ np.sin(x)

    def best_response(self, x: np.ndarray) -> np.ndarray:
        """The maximiser y*(x), in closed form."""
        return np.clip(self.pull(x) / self.concavity_D, -self.omega, self.omega)

    def worst_value(self, x: np.ndarray) -> np.ndarray:
        """g(x) = max_y f(x, y)."""
        return self.value(x, self.best_response(x))

    def worst_gradient(self, x: np.ndarray) -> np.ndarray:
        """Gradient of g: that of f at the maximiser, which is unique (Danskin)."""
        return self.gradient_x(x, self.best_response(x))

    def noisy_gradient_x(self, x: np.ndarray, y: np.ndarray, batch: int, chance: np.random.Generator) -> np.ndarray:
        """Mean of `batch` stochastic gradients, drawn at once: a mean of exponentials is a Gamma variable."""
        centred = chance.gamma(batch, 1 / batch, x.shape) - 1
        return self.gradient_x(x, y) + (self.deviations_H[:, None] / np.sqrt(x.shape[-1])) * centred


def grouped_problem(kappa: float, groups: int = 4, width: int = 4, ratio: float = 1.5) -> MinimaxProblem:
    """A problem with alpha_i spread evenly in the logarithm over a factor kappa, largest a_i = 1.

    Args:
        kappa: kappa_alpha, at least 1.
        groups: H.
        width: D; coordinates take turns between c_j = 1 and c_j = ratio.
        ratio: S / C of the inner problem.
    """
    return MinimaxProblem(
        scales_H=np.geomspace(1 / kappa, 1, groups), concavity_D=np.where(np.arange(width) % 2, ratio, 1.0)
    )
