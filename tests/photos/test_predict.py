"""Answers about photos: which class, how sure, which task, or unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.learning.logit_scale import fit_logit_scale
from clom.methods.families.base import Blocks, Method
from clom.methods.ncm import Ncm, NcmSettings
from clom.photos.predict import Answer, Predictor
from clom.photos.teach import learn_pictures
from clom.storage.model_file import load_model, save_model
from methods.minimal import minimal
from photos.pictures import ADAPTER, MAKERS, SHAPE, SIDE, coloured, mean_colour, ncm, pictures


@pytest.fixture(scope="module")
def method() -> Method:
    method = mean_colour()
    learn_pictures(method, pictures("red", "green", count=10), "leaves")
    learn_pictures(method, pictures("blue", "grey", count=10), "sea")
    return method


@pytest.fixture
def predictor(method: Method) -> Predictor:
    return Predictor(method)


def test_the_right_class_and_task(predictor: Predictor) -> None:
    for name, task in (("red", "leaves"), ("green", "leaves"), ("blue", "sea"), ("grey", "sea")):
        for answer in predictor(coloured(name, 3, seed=5), false_rejection=0.0):
            assert (answer.best.class_name, answer.best.task, answer.unknown) == (name, task, False)


def test_confidences_are_chances_among_all_classes(predictor: Predictor) -> None:
    (answer,) = predictor(coloured("red", 1), top=9)
    assert [len(answer.guesses), sum(guess.confidence for guess in answer.guesses)] == [4, pytest.approx(1.0)]
    chances = [guess.confidence for guess in answer.guesses]
    assert chances == sorted(chances, reverse=True)
    assert len(predictor(coloured("red", 1), top=2)[0].guesses) == 2
    assert set(answer.belonging) == {"leaves", "sea"}


def test_confidence_is_about_what_was_right_on_held_out_photos(predictor: Predictor) -> None:
    """Scores alone would say about 1/4 each: they are squared distances of at most 4."""
    sure = [answer.best.confidence for answer in predictor(coloured("green", 10, seed=3))]
    assert 0.6 < sum(sure) / len(sure) < 1.0


def test_a_given_task_is_all_there_is_to_choose_from(predictor: Predictor) -> None:
    (answer,) = predictor(coloured("red", 1), task="sea")
    assert {guess.class_name for guess in answer.guesses} == {"blue", "grey"}
    assert {guess.task for guess in answer.guesses} == {"sea"}
    assert list(answer.belonging) == ["sea"]
    assert sum(guess.confidence for guess in answer.guesses) == pytest.approx(1.0)


def test_a_misspelt_task(predictor: Predictor) -> None:
    with pytest.raises(UserError, match="Did you mean 'leaves'"):
        predictor(coloured("red", 1), task="leafs")


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0])
def test_a_rate_that_is_none(predictor: Predictor, rate: float) -> None:
    with pytest.raises(UserError, match="false-rejection"):
        predictor(coloured("red", 1), false_rejection=rate)


def test_unknown_is_what_its_own_task_finds_less_familiar_than_the_rate(method: Method, predictor: Predictor) -> None:
    strange = coloured("violet", 8)
    images = torch.cat([strange, coloured("red", 8, seed=9), coloured("grey", 8, seed=9)])
    records = {task.name: task.record for task in method.tasks}
    seen = set()
    for rate in (0.0, 0.05, 0.3, 0.9):
        for answer in predictor(images, false_rejection=rate):
            record = records[answer.best.task]
            assert record is not None
            assert answer.familiarity == record.own_scores.familiarity(answer.belonging[answer.best.task])
            assert answer.unknown == (answer.familiarity is not None and answer.familiarity <= rate)
            seen.add(answer.unknown)
    assert seen == {True, False}
    assert all(answer.unknown for answer in predictor(strange))


def test_a_file_without_records_never_says_unknown(method: Method, tmp_path: Path) -> None:
    save_model(tmp_path / "m", method)
    old = load_model(tmp_path / "m")
    old.tasks = [replace(task, record=None) for task in old.tasks]
    save_model(tmp_path / "m", old)
    (answer,) = Predictor(load_model(tmp_path / "m"))(coloured("violet", 1), false_rejection=0.9)
    assert (answer.unknown, answer.familiarity) == (False, None)


def test_photos_of_another_size_and_of_one_channel(predictor: Predictor) -> None:
    assert predictor(coloured("blue", 1, side=50))[0].best.class_name == "blue"
    assert len(predictor(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))) == 2


def test_no_photos_no_answers(predictor: Predictor) -> None:
    assert predictor(torch.empty(0, 3, SIDE, SIDE, dtype=torch.uint8)) == []


def test_an_untaught_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="clom learn"):
        Predictor(ncm())


class Fond(Ncm):
    """Its own idea of what belongs to a task."""

    def blocks_and_belonging(
        self, pixels: torch.Tensor, tasks: Sequence[int] | None = None
    ) -> tuple[Blocks, torch.Tensor]:
        blocks, _ = super().blocks_and_belonging(pixels, tasks)
        numbers = torch.arange(len(self.tasks)) if tasks is None else torch.tensor(tasks)
        return blocks, numbers.float() + pixels[:, 0, 0, 0, None]


def test_a_method_s_own_belonging_is_asked() -> None:
    method = Fond(ADAPTER, NcmSettings(), (3, SIDE, SIDE))
    learn_pictures(method, pictures("red", "green"), "one")
    learn_pictures(method, pictures("blue", "grey"), "two")
    image = torch.full((1, 3, SIDE, SIDE), 40, dtype=torch.uint8)
    (answer,) = Predictor(method)(image)
    assert answer.belonging == {"one": 40.0, "two": 41.0}
    assert Predictor(method)(image, task="two")[0].belonging == {"two": 41.0}


@pytest.mark.parametrize("make", [*MAKERS.values(), lambda: minimal(SHAPE)], ids=[*MAKERS, "minimal"])
def test_every_kind_of_model_answers(make: Callable[[], Method]) -> None:
    method = make()
    learn_pictures(method, pictures("red", "green"), "one")
    (answer,) = Predictor(method)(coloured("red", 1))
    assert 0.5 <= answer.best.confidence <= 1
    assert answer.to_json()["guesses"][0]["class_name"] == answer.best.class_name


# --- what an answer depends on ---------------------------------------------------------------------------------------

EXACT = [kind for kind in MAKERS if kind != "slda"]  # whose earlier scores change with every task


@pytest.mark.parametrize("kind", EXACT)
def test_with_a_given_task_later_lessons_and_forgetting_change_no_answer(kind: str) -> None:
    """Neither class nor confidence nor unknown, to the last bit."""
    method = MAKERS[kind]()
    images = torch.cat([coloured(name, 3, seed=7) for name in ("red", "green", "blue", "violet")])
    learn_pictures(method, pictures("red", "green", count=10), "leaves")
    first = Predictor(method)(images, task="leaves", top=2)
    learn_pictures(method, pictures("blue", "grey", count=10), "sea")
    second = Predictor(method)(images, task="sea", top=2)
    assert Predictor(method)(images, task="leaves", top=2) == first
    learn_pictures(method, pictures("violet", "pink", "brown"), "more")
    assert Predictor(method)(images, task="leaves", top=2) == first
    method.forget(0)
    assert Predictor(method)(images, task="sea", top=2) == second


def test_confidence_within_a_task_is_about_what_was_right_on_its_held_out_photos() -> None:
    method = mean_colour()
    learn_pictures(method, pictures("red", "green", count=20), "leaves")
    record = method.tasks[0].record
    assert record is not None
    assert record.task_logit_scale is not None
    assert record.task_logit_scale > 1.2  # no held-out photo was wrong
    sure = [answer.best.confidence for answer in Predictor(method)(coloured("red", 10, seed=3), task="leaves")]
    assert 0.8 < sum(sure) / len(sure) < 1  # their mean is (n + 1) / (n + 2) for n held-out photos


def test_files_of_earlier_versions_are_fitted_to_their_stored_samples() -> None:
    """Also without a record of the temperature, later lessons change no answer."""
    method = MAKERS["clom from scratch"]()
    learn_pictures(method, pictures("red", "green", count=10), "leaves")
    record = method.tasks[0].record
    assert record is not None
    method.tasks[0] = replace(method.tasks[0], record=record.model_copy(update={"task_logit_scale": None}))
    images = coloured("red", 4, seed=7)
    before = Predictor(method)(images, task="leaves", top=2)
    learn_pictures(method, pictures("blue", "grey", count=10), "sea")
    assert Predictor(method)(images, task="leaves", top=2) == before
    samples, labels = method.held_out_images(0), method.held_out_labels(0)
    assert samples is not None
    assert labels is not None
    scale = fit_logit_scale(method.block(samples, 0), labels)
    expected = (scale * method.block(images[:1], 0)).softmax(1).max()
    assert before[0].best.confidence == pytest.approx(float(expected), rel=1e-5)


def check_same(answers: Sequence[Answer], others: Sequence[Answer]) -> None:
    """Equal, but for practically impossible classes: probabilities of 1e-29 have differed in the fifth digit."""
    for answer, other in zip(answers, others, strict=True):
        likely, expected = (
            {guess.class_name: guess.confidence for guess in each.guesses if guess.confidence > 1e-20}
            for each in (answer, other)
        )
        assert likely == expected
        assert replace(answer, guesses=other.guesses) == other


@pytest.mark.parametrize("task", [None, "leaves"])
@pytest.mark.parametrize("kind", MAKERS)
def test_answers_do_not_depend_on_other_images_or_threads(kind: str, task: str | None) -> None:
    method = MAKERS[kind]()
    learn_pictures(method, pictures("red", "green", count=10), "leaves")
    learn_pictures(method, pictures("blue", "grey", "pink", count=10), "sea")
    images = torch.cat([coloured(name, 10, seed=7) for name in ("red", "green", "blue", "violet")])
    alone = [answer for image in torch.split(images, 1) for answer in Predictor(method)(image, task, top=5)]
    check_same(Predictor(method)(images, task, top=5), alone)
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            check_same(Predictor(method)(images, task, top=5), alone)
            check_same(Predictor(method)(images[:1], task, top=5), alone[:1])
    finally:
        torch.set_num_threads(1)


class Overflowing(Ncm):
    """Has scores that no image should have."""

    def scores(self, features: torch.Tensor, rows: slice = slice(None)) -> torch.Tensor:
        return super().scores(features, rows) * float("nan")


@pytest.mark.parametrize("task", [None, "one"])
def test_scores_that_are_not_finite_are_no_answer(task: str | None) -> None:
    method = Overflowing(ADAPTER, NcmSettings(), SHAPE)
    learn_pictures(method, pictures("red", "green"), "one")
    with pytest.raises(UserError, match="NaN or infinite"):
        Predictor(method)(coloured("red", 1), task)
