"""Recipes are chosen by images that are neither learned nor tested."""

from __future__ import annotations

import pytest

from benchmarks.held_out import held_out, main
from clom.data import catalog
from clom.data.images import Images
from clom.experiments.config import resolve


def _told_apart(*parts: Images) -> list[bytes]:
    return [image.numpy().tobytes() for part in parts for image in part.pixels]


def test_no_image_is_in_two_places() -> None:
    stream = held_out(resolve("digits-5t").data, None, seed=0)
    digits = catalog.load("digits", None)
    asked = _told_apart(*stream.tests)
    learned = _told_apart(*(part for task in stream for part in (task.train, task.validation)))
    assert len(asked) == sum(int((digits.train.labels == label).sum()) // 5 for label in range(10))
    assert len(asked) + len(learned) == len(digits.train)
    assert set(asked) | set(learned) == set(_told_apart(digits.train))
    assert not set(asked) & set(learned)


def test_a_task_alone_is_learned_and_asked(capsys: pytest.CaptureFixture[str]) -> None:
    main(["digits-5t", "--budget", "smoke", "--alone", "2", "--threads", "2"])
    printed = capsys.readouterr().out
    assert printed.startswith("after 1: TIL ")
    assert printed.count("\n") == 1
