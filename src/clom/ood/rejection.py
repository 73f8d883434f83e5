"""The definition of an unknown image, used wherever images are rejected.

An OOD score is high for images that belong to a task. A new image's conformal p-value is the share of the task's
held-out images, including the new one, whose score is no higher. The image is unknown at a false-rejection rate r if
its p-value is at most r; then at most the share r of new images of the task is rejected, for any distribution of the
scores.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from clom.errors import UserError

FALSE_REJECTION = 0.05
"""The default rate of images of known classes that may be rejected as unknown."""


@dataclass(frozen=True)
class HeldOutScores:
    """Scores of a task's own held-out images, in ascending order."""

    ascending: tuple[float, ...]

    @staticmethod
    def of(scores: Iterable[float]) -> HeldOutScores:
        """From scores in any order."""
        return HeldOutScores(tuple(sorted(scores)))

    def familiarity(self, score: float) -> float | None:
        """The p-value of a score; None without held-out images.

        Below all held-out scores, where the conformal p-value is constant, an exponential tail extrapolates it; its
        scale is that of their lower half.
        """
        count, n = bisect_right(self.ascending, score), len(self.ascending)
        if n == 0:
            return None
        return (count + 1) / (n + 1) if count else math.exp((score - self.ascending[0]) / self._tail_scale) / (n + 1)

    def threshold(self, false_rejection: float) -> float:
        """The lowest score that is not unknown at this rate; minus infinity without held-out images."""
        check_rate(false_rejection)
        if not self.ascending:
            return -math.inf
        lowest = next(score for score in self.ascending if not self._rejects(score, false_rejection))
        if lowest > self.ascending[0] or 1 / (len(self.ascending) + 1) <= false_rejection:
            return lowest
        reach = self._tail_scale
        while not self._rejects(low := lowest - reach, false_rejection):
            reach *= 2
        high = lowest
        while low < (middle := low / 2 + high / 2) < high:
            low, high = (middle, high) if self._rejects(middle, false_rejection) else (low, middle)
        return high

    def expected_rejection(self, false_rejection: float, confidence: float = 0.9) -> tuple[float, float]:
        """Between which rates new images of the task will really be rejected, with this confidence.

        The threshold for a rate r is the k-th lowest of n held-out scores, k = floor(r (n + 1)). The share of new
        images below it is beta-distributed with parameters k and n + 1 - k, whatever the distribution of the scores:
        few held-out images leave it uncertain. Where the tail is extrapolated (k = 0), the interval starts at zero.
        """
        from scipy.special import betaincinv  # not needed to reject images

        check_rate(false_rejection)
        n = len(self.ascending)
        k = math.floor(false_rejection * (n + 1) + 1e-9)
        outside = (1 - confidence) / 2
        low = float(betaincinv(k, n + 1 - k, outside)) if k else 0.0
        return low, float(betaincinv(k or 1, n + 1 - (k or 1), 1 - outside)) if n else 1.0

    def rejected_share(self, false_rejection: float) -> float:
        """The share of the held-out images that are unknown at this rate: at most the rate."""
        rejected = sum(self._rejects(score, false_rejection) for score in self.ascending)
        return rejected / max(1, len(self.ascending))

    def _rejects(self, score: float, false_rejection: float) -> bool:
        return is_unknown(self.familiarity(score), false_rejection)

    @property
    def _tail_scale(self) -> float:
        """Mean distance of the lower half of the scores from the median."""
        median = self.ascending[len(self.ascending) // 2]
        lower = self.ascending[: len(self.ascending) // 2]
        return max(sum(median - score for score in lower) / max(1, len(lower)), 1e-12)


def is_unknown(familiarity: float | None, false_rejection: float) -> bool:
    """Whether the p-value is at most the rate; False without a p-value."""
    return familiarity is not None and familiarity <= false_rejection


def check_rate(false_rejection: float) -> None:
    if not 0 <= false_rejection < 1:
        raise UserError(f"A false-rejection rate must be at least 0 and below 1, not {false_rejection}.")
