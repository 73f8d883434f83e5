"""SLDA: streaming linear discriminant analysis on frozen features (Hayes and Kanan 2020).

The published covariance weights samples by their position in the stream. Ours is the pooled covariance of all samples
so far, the limit of the published one, and does not depend on their order.

Tested by tests/methods/families/test_frozen.py.
"""

from __future__ import annotations

from torch import Tensor

from clom.learning.heads import discriminants
from clom.methods.families.frozen import FrozenSettings
from clom.methods.streaming import StreamingMethod
from clom.settings import Share


class SldaSettings(FrozenSettings):
    shrinkage: Share = 0.6
    """epsilon: the share of the covariance replaced by a multiple of the identity with the same trace. Chosen on
    held-out photos with 40 per class; the paper adds 1e-4 times the identity, for hundreds of thousands of images."""


class Slda(StreamingMethod):
    """`w_c = C^-1 mu_c`, `b_c = -mu_c w_c / 2` with one covariance C for all classes and equal priors."""

    name = "slda"
    settings_type = SldaSettings
    settings: SldaSettings

    def solve(self) -> tuple[Tensor, Tensor]:
        return discriminants(self.means, self.scatter / self.n_samples, self.settings.shrinkage)
