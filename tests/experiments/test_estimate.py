"""Estimates count what a run does, and the rates come from the steps it really takes."""

from __future__ import annotations

import time

import pytest

from clom.experiments import estimate
from clom.experiments.catalogue import experiment_names
from clom.experiments.config import resolve
from clom.experiments.estimate import Rates, Work, estimate_seconds, measure, multiply_adds, timed_images, work_of
from clom.learning.progress import Progress

FOR_EVER = float("inf")  # a rate at which a phase takes no time


def test_counts_the_views_of_every_phase() -> None:
    """digits: 10 classes, 144 training images each of which 10% validate, 36 test images, 75 epochs, 6 views."""
    config = resolve("digits-5t", by_hand=True)
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
    monkeypatch.setattr(estimate, "_SECONDS", 0.0)
    for budget in ("smoke", "cpu"):
        rates = measure(resolve("digits-5t", budget=budget), (1, 8, 8))
        assert 1 < rates.features < rates.answers < 1e7
        assert rates.head > 1


def test_a_batch_is_timed_or_as_much_of_it_as_takes_a_second() -> None:
    digits, paper = resolve("digits-5t"), resolve("cifar10-5t", budget="paper")
    assert timed_images(digits, 8) == digits.settings["learning"]["plan"]["batch"]
    assert 1 <= timed_images(paper, 32) < paper.settings["learning"]["plan"]["batch"]


def test_short_steps_are_timed_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    for seconds, steps in ((0.5, 4), (0.02, 50), (1e-6, 100)):

        def fake(*_: object, taken: float = seconds) -> tuple[Rates, float]:
            tried.append(int(str(_[-1])))
            return Rates(tried[-1], 1, 1), taken

        monkeypatch.setattr(estimate, "_measure", fake)
        assert measure(resolve("digits-5t"), (1, 8, 8)).features == steps
    assert tried == [4, 4, 50, 4, 100]


class Machine:
    """A machine whose clocks are set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.processor = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(time, "process_time", lambda: self.processor)

    def step(self, clock: estimate._Clock, phase: str, wall: float, processor: float) -> None:
        self.wall += wall
        self.processor += processor
        clock(Progress(0, phase, 1, 1))


def test_an_idle_machine_and_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads compute 1 s each in every step of the first phase and 0.25 s in those of the second; on the busy
    machine they wait as long, all of it in one step."""
    for busy in (False, True):
        machine, clock = Machine(monkeypatch), estimate._Clock(threads=2)
        for phase, seconds in (("features", 1.0), ("head", 0.25)):
            machine.step(clock, phase, 9.0, 1.0)  # warm-up, before the first report
            for number in range(4):
                waiting = 4 * seconds if busy and number == 2 else 0.0
                machine.step(clock, phase, seconds + waiting, 2 * seconds)
        assert clock.seconds("features") == pytest.approx(2.0 if busy else 1.0)
        assert clock.seconds("head") == pytest.approx(0.5 if busy else 0.25)


def test_on_an_accelerator_wall_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, clock = Machine(monkeypatch), estimate._Clock(threads=None)
    for wall in (9.0, 3.0, 2.0, 2.0):
        machine.step(clock, "features", wall, 0.001)
    assert clock.seconds("features") == 2.0


def test_every_experiment_has_an_estimate() -> None:
    for name in experiment_names():
        for budget in ("smoke", "cpu", "paper"):
            config = resolve(name, budget=budget)
            assert estimate_seconds(config, work_of(config), Rates(100.0, 100.0, 100.0)) > 0
