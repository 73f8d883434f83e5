"""Request and response schemas of the API.

Tested by tests/serve/answers/test_answers.py.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

EXAMPLE_ANSWER: dict[str, Any] = {
    "file": "garden.jpg",
    "unknown": False,
    "familiarity": 0.62,
    "guesses": [
        {"class_name": "tulip", "confidence": 0.91, "task": "flowers"},
        {"class_name": "rose", "confidence": 0.07, "task": "flowers"},
    ],
    "belonging": {"flowers": 4.1, "pets": 0.3},
}
EXAMPLE_JOB: dict[str, Any] = {
    "id": "9f86d081884c7d65",
    "task": "pets",
    "classes": [{"name": "cat", "pictures": 20}, {"name": "dog", "pictures": 20}],
    "adds": False,
    "hints": [],
    "unreadable": [],
    "state": "learning",
    "phase": "features",
    "progress": 0.4,
    "seconds_left": 31.0,
    "problem": "",
    "lesson": None,
    "checks": [],
}


class Problem(BaseModel):
    """An error: what was wrong and what to do."""

    error: str
    unreadable: list[UnreadableFile] = Field(default=[], description="Files that could not be decoded.")


class UnreadableFile(BaseModel):
    file: str
    reason: str


class GuessOut(BaseModel):
    class_name: str
    confidence: float = Field(description="Probability among the competing classes.")
    task: str


class AnswerOut(BaseModel):
    """The prediction for one picture; only `file` and `error` if it could not be decoded."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_ANSWER]})

    file: str
    unknown: bool | None = Field(default=None, description="Whether the picture is rejected as unknown.")
    familiarity: float | None = Field(
        default=None,
        description="Fraction of the task's held-out pictures with an OOD score no higher than this one's.",
    )
    guesses: list[GuessOut] = Field(default=[], description="The most likely classes, best first.")
    belonging: dict[str, float] = Field(default={}, description="OOD score of each task, high for in-distribution.")
    error: str | None = None


class Answers(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "3b5d2f0c9a1e", "task": None, "false_rejection": 0.05, "answers": [EXAMPLE_ANSWER]}]
        }
    )

    model: str = Field(description="Version of the model that answered.")
    task: str | None
    false_rejection: float
    answers: list[AnswerOut]


class ClassCount(BaseModel):
    name: str
    pictures: int


class JobOut(BaseModel):
    """A training job. States: preparing, learning, checking; then done, failed, cancelled or interrupted. `checked`: it
    waits to be resumed or cancelled, since there are hints."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_JOB]})

    id: str
    task: str
    classes: list[ClassCount]
    adds: bool = Field(description="Whether the pictures are added to classes that the model knows.")
    hints: list[HintOut] = Field(description="What to look at before these pictures are learned.")
    unreadable: list[UnreadableFile]
    state: str
    phase: str
    progress: float
    seconds_left: float | None
    problem: str
    lesson: dict[str, Any] | None = Field(description="When done: accuracy on held-out pictures and more.")
    checks: list[dict[str, Any]] = Field(description="When done: whether each earlier task is bit-identical.")


class Changed(BaseModel):
    """A change of the model that needed no lesson."""

    model: str = Field(description="Version of the model now in use.")
    said: str = Field(description="What was done.")


class HintOut(BaseModel):
    kind: str = Field(description="two classes, copies, blurred, tiny or unbalanced.")
    text: str


class JobList(BaseModel):
    jobs: list[JobOut] = Field(description="The latest first.")


class Health(BaseModel):
    """Only the status for those who may not see the model."""

    status: str
    model: str | None = None
    tasks: int | None = None
    teaching: bool | None = None


class ModelOut(BaseModel):
    """The model: tasks, classes, capacity, the cost of rejection, and the permissions of this server."""

    model_config = ConfigDict(extra="allow")

    file: str
    version: str
    method: str
    tasks: list[dict[str, Any]]
    server: dict[str, Any]


def form(properties: dict[str, Any], required: list[str], example: dict[str, Any]) -> dict[str, Any]:
    """The documentation of a multipart form."""
    schema = {"type": "object", "properties": properties, "required": required, "example": example}
    return {"multipart/form-data": {"schema": schema}}


_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}

ASK_BODY = {
    "requestBody": {
        "required": True,
        "description": "Pictures in any common format, as files of a form, or one picture as the body.",
        "content": form({"pictures": _FILES}, ["pictures"], {"pictures": ["garden.jpg"]})
        | {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}
ADD_BODY = {
    "requestBody": {
        "required": True,
        "description": "Pictures, and for each the class that it shows, in the same order.",
        "content": form(
            {
                "labels": {"type": "array", "items": {"type": "string", "maxLength": 80}, "minItems": 1},
                "pictures": _FILES,
            },
            ["labels", "pictures"],
            {"labels": ["cat", "cat"], "pictures": ["1.jpg", "2.jpg"]},
        ),
    }
}
TEACH_BODY = {
    "requestBody": {
        "required": True,
        "description": "Pictures, and one label per picture in the same order.",
        "content": form(
            {
                "name": {"type": "string", "maxLength": 80, "description": "Name of the task."},
                "labels": {"type": "array", "items": {"type": "string", "maxLength": 80}, "minItems": 1},
                "pictures": _FILES,
            },
            ["labels", "pictures"],
            {"name": "pets", "labels": ["cat", "dog"], "pictures": ["1.jpg", "2.jpg"]},
        ),
    }
}
