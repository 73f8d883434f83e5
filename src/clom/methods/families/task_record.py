"""What a model file tells about each of its tasks besides the numbers that it answers with."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, AwareDatetime, Field

from clom.ood.rejection import HeldOutScores
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
    logit_scale: PositiveNumber = Field(default=1.0, validation_alias=AliasChoices("logit_scale", "sharpness"))
    """The inverse temperature: what scores are multiplied by before the softmax, fitted to the held-out images. Older
    files call it `sharpness`."""
    belonging: Annotated[tuple[Score, ...], AfterValidator(_ascending)] = ()
    """How much each held-out image looks like this task's own, sorted: any rejection rate can be chosen from it."""
    fingerprint: str
    """Of everything the task's scores are computed from: see `clom.storage.fingerprint`."""

    @property
    def own_scores(self) -> HeldOutScores:
        """What decides whether an image is unknown to this task."""
        return HeldOutScores(self.belonging)

    @property
    def day(self) -> str:
        return self.learned.strftime("%Y-%m-%d %H:%M UTC")


def now() -> datetime:
    """In UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)
