"""What a model file tells about each of its tasks besides the numbers that it answers with."""

from __future__ import annotations

import math
from bisect import bisect_right
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field

from clom.settings import Count, PositiveNumber, Settings


def _ascending(scores: tuple[float, ...]) -> tuple[float, ...]:
    if any(one > two for one, two in pairwise(scores)):
        raise ValueError("scores are kept in ascending order")
    return scores


Score = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class TaskRecord(Settings):
    """Noted once, right after the task was learned."""

    learned: AwareDatetime
    images: tuple[Count, ...]
    """Of each class: how many images it was learned from."""
    validation_images: tuple[Count, ...]
    """Of each class: how many were held out to measure what follows."""
    accuracy: Share
    """Of the held-out images, with the classes of this task to choose from."""
    sharpness: PositiveNumber = 1.0
    """What scores are multiplied by before they are read as log-probabilities; fitted to the held-out images."""
    belonging: Annotated[tuple[Score, ...], AfterValidator(_ascending)] = ()
    """How much each held-out image looks like this task's own, sorted: any rejection rate can be chosen from it."""
    fingerprint: str
    """Of everything the task's scores are computed from: see `clom.storage.fingerprint`."""

    def familiarity(self, score: float) -> float | None:
        """About which share of the task's own images look no more like it than an image of this score; None if
        nothing was held out to tell.

        An image is unknown at a false-rejection rate r if this is r or less. For scores among those of the held-out
        images it is their conformal p-value, so that of new images of the task no more than the share r is rejected.
        Below all of them, where few held-out images say nothing more, an exponential tail goes on; its scale is that of
        their lower half.
        """
        count, n = bisect_right(self.belonging, score), len(self.belonging)
        if n == 0:
            return None
        return (count + 1) / (n + 1) if count else math.exp((score - self.belonging[0]) / self._tail_scale) / (n + 1)

    def cost(self, false_rejection: float) -> float:
        """The share of held-out images that are taken for unknown at this rate: at most the rate."""
        rejected = [score for score in self.belonging if is_unknown(self.familiarity(score), false_rejection)]
        return len(rejected) / max(1, len(self.belonging))

    @property
    def _tail_scale(self) -> float:
        """How far scores of the lower half lie below the middle one, on average."""
        middle = self.belonging[len(self.belonging) // 2]
        lower = self.belonging[: len(self.belonging) // 2]
        return max(sum(middle - score for score in lower) / max(1, len(lower)), 1e-12)

    @property
    def day(self) -> str:
        return self.learned.strftime("%Y-%m-%d %H:%M UTC")


def is_unknown(familiarity: float | None, false_rejection: float) -> bool:
    """What cannot be judged is not rejected."""
    return familiarity is not None and familiarity <= false_rejection


def now() -> datetime:
    """In UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)
