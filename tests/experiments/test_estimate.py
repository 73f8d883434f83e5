"""Estimates count what a run does, and the rates come from the steps it really takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clom.experiments import estimate
from clom.experiments.catalogue import experiment_names
from clom.experiments.config import resolve
from clom.experiments.estimate import Rates, Work, estimate_seconds, measure, multiply_adds, work_of
from clom.learning.progress import Progress

FOR_EVER = float("inf")  # a rate at which a phase takes no time


def test_counts_the_views_of_every_phase() -> None:
    """digits: 10 classes, 144 training images each of which 10% validate, 36 test images, 75 epochs, 6 views."""
    config = resolve("digits-5t")
    assert estimate_seconds(config, work_of(config), Rates(1.0, FOR_EVER, FOR_EVER)) == pytest.approx(8 * 1296 * 75)
    assert estimate_seconds(config, work_of(config), Rates(FOR_EVER, 1.0, FOR_EVER)) == pytest.approx(4 * 1296 * 6)
    assert estimate_seconds(config, work_of(config), Rates(FOR_EVER, FOR_EVER, 1.0)) == pytest.approx(4 * 360 * 5)
    assert estimate_seconds(config, work_of(config), Rates(2.0, 4.0, 5.0)) == pytest.approx(
        8 * 1296 * 75 / 2 + 1296 * 6 + 4 * 360
    )


def test_the_paper_s_head_is_counted_by_its_epochs() -> None:
    config = resolve("mnist-5t", budget="paper")
    head = config.settings["learning"]["head"]
    assert "plan" in head
    images = 0.9 * 6000 * 10
    seconds = estimate_seconds(config, work_of(config), Rates(FOR_EVER, 1.0, FOR_EVER))
    assert seconds == pytest.approx(8 * images * head["plan"]["epochs"], rel=0.02)  # 8N views


def test_without_rotations_there_are_fewer_views() -> None:
    plain, turned = resolve("digits-5t", overrides={"learning.rotations": 1}), resolve("digits-5t")
    rates = Rates(10.0, 20.0, 30.0)
    seconds = [estimate_seconds(config, work_of(config), rates) for config in (plain, turned)]
    assert 4 * seconds[0] == pytest.approx(seconds[1])


def test_multiply_adds_by_hand() -> None:
    """One image through 3x3x3x4 weights on 8x8 pixels, then 4 channels to 5, pooled; the backward pass counts twice."""
    net = {"channels": [4, 4, 4], "kernels": [1, 1, 1], "paddings": [0, 0, 0], "pools": [2, 2, 2], "hidden": 5}
    overrides = {f"net.{name}": value for name, value in net.items()}
    config = resolve("digits-5t", overrides={**overrides, "learning.plan.epochs": 2, "learning.head.views": 1})
    an_image = 64 * 3 * 4 + 16 * 4 * 4 + 4 * 4 * 4 + 4 * 5
    work = Work((1, 8, 8), trained=10, tested=3, n_tasks=5)
    assert multiply_adds(config, work) == pytest.approx(4 * (3 * 2 * 10 * 2 + 10 + 5 * 3) * an_image)


def test_every_budget_of_an_experiment_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "_SIZES", (2,))
    for budget in ("smoke", "cpu"):
        rates = measure(resolve("digits-5t", budget=budget), (1, 8, 8))
        assert 1 < rates.features < rates.answers < 1e7
        assert rates.head > 1


def test_a_small_network_is_measured_with_more_images(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def steps_of(seconds: float) -> Callable[[object, object, int, object], tuple[Rates, float]]:
        def fake(config: object, shape: object, n_images: int, device: object) -> tuple[Rates, float]:
            tried.append(n_images)
            return Rates(n_images, 1, 1), seconds * n_images

        return fake

    monkeypatch.setattr(estimate, "_measure", steps_of(0.3))
    assert measure(resolve("digits-5t"), (1, 8, 8)).features == 1
    monkeypatch.setattr(estimate, "_measure", steps_of(0.001))
    assert measure(resolve("digits-5t"), (1, 8, 8)).features == 32
    assert tried == [1, 1, 4, 32]


def test_the_shortest_step_between_two_reports_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 13.0, 15.0, 20.0, 20.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = estimate._Clock()
    for phase in ("features", "features", "features", "head", "head"):
        clock(Progress(0, phase, 1, 1, 1, 1, 0.0))
    monkeypatch.undo()
    assert clock.seconds("features") == 2.0
    assert clock.seconds("head") == 0.5


def test_every_experiment_has_an_estimate() -> None:
    for name in experiment_names():
        for budget in ("smoke", "cpu", "paper"):
            config = resolve(name, budget=budget)
            assert estimate_seconds(config, work_of(config), Rates(100.0, 100.0, 100.0)) > 0
