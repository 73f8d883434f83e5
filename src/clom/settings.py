"""Base of everything that can be set: immutable, checked, and closed against misspelt names."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings; an unknown name or a wrong type is refused when it is built."""

    model_config = ConfigDict(frozen=True, extra="forbid")
