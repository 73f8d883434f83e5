"""Base of everything that can be set: immutable, checked, and closed against misspelt names."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Settings(BaseModel):
    """A group of settings; an unknown name or a wrong type is refused when it is built."""

    model_config = ConfigDict(frozen=True, extra="forbid")
