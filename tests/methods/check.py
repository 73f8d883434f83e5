"""The one test that every system passes: it learns, scores, saves, loads, goes on, repeats and refuses nonsense."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clom.data.images import Images, to_unit
from clom.data.stream import Stream, Task
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.families.base import Blocks, Method
from clom.storage.model_file import load_model, save_model


def check_method(make: Callable[[int], Method], stream: Stream) -> None:
    """`make(seed)` gives a fresh method, small enough to learn the first two tasks of `stream` in a second or two."""
    first, second = stream[0], stream[1]
    pixels = stream.tests[0].pixels
    method = make(0)
    assert method.tasks == []
    check_refusals(method, first, second)

    random_before = torch.get_rng_state()
    told: list[Progress] = []
    assert method.learn(first, TrainingContext(told.append)) is method
    assert torch.equal(torch.get_rng_state(), random_before), "learning disturbs the caller's randomness"
    assert told, "progress is never reported"
    assert told[-1].done == told[-1].total
    check_blocks(method, pixels, [first])
    check_repeats(make, method, first, pixels)
    check_refusals(method, second, first)
    check_interruption(method, second, pixels)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(path, method)
        loaded = load_model(path)
    check_equal(loaded, method, pixels)

    old = method.blocks(pixels)
    for continued in (method, loaded):
        continued.learn(second)
        check_blocks(continued, pixels, [first, second])
        if continued.exact_memory:
            assert torch.equal(continued.blocks(pixels)[0], old[0]), "the first task's scores changed"
    check_equal(loaded, method, pixels)
    check_laws(method, stream)


def check_blocks(method: Method, pixels: Tensor, tasks: list[Task]) -> None:
    """One finite block per task, independent of how the images are portioned and given."""
    blocks = method.blocks(pixels)
    assert [block.shape for block in blocks] == [(len(pixels), task.n_classes) for task in tasks]
    assert [(task.name, task.class_names) for task in method.tasks] == [(t.name, t.class_names) for t in tasks]
    for number, block in enumerate(blocks):
        assert block.dtype == torch.float32
        assert not block.requires_grad
        assert bool(torch.isfinite(block).all())
        assert bool((block.std(0) > 0).all()), "every image gets the same score"
        assert torch.equal(method.block(pixels, number), block)
    close(method.blocks(pixels[:1]), [block[:1] for block in blocks])
    close(method.blocks(to_unit(pixels)), blocks)
    assert [tuple(block.shape) for block in method.blocks(pixels[:0])] == [(0, task.n_classes) for task in tasks]


def check_laws(method: Method, stream: Stream) -> None:
    """TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR), and no calibration changes an answer within a task."""
    n_tasks = len(method.tasks)
    book = Scorebook(stream.tests[:n_tasks])
    book.update(method)
    calibrations = method.calibrations()
    assert "none" in calibrations
    evaluation = evaluate(book, calibrations)
    assert evaluation.n_tasks == n_tasks
    for name, way in evaluation.by_calibration.items():
        assert evaluation.til + way.task_detection - 1 <= way.cil + 1e-12, name
        assert way.cil <= min(evaluation.til, way.task_detection) + 1e-12, name
    for name, calibrate in calibrations.items():
        assert bool(torch.isfinite(torch.cat([calibrate.scales, calibrate.shifts])).all()), name
        assert bool((calibrate.scales > 0).all()), name
        for test in range(n_tasks):
            raw = book.blocks(test)
            for before, after in zip(raw, calibrate(raw), strict=True):
                assert torch.equal(before.argmax(1), after.argmax(1)), name
    assert method.n_parameters() > 0
    assert method.memory_bytes >= 0
    for fractions in method.capacity().values():
        assert list(fractions) == sorted(fractions)
        assert all(0 <= fraction <= 1 for fraction in fractions)


def check_repeats(make: Callable[[int], Method], method: Method, first: Task, pixels: Tensor) -> None:
    """Same seed, same result to the last bit, whatever the caller's randomness; another seed, another result."""
    torch.manual_seed(12345)
    check_equal(make(0).learn(first), method, pixels)
    (mine,), (other,) = method.blocks(pixels), make(1).learn(first).blocks(pixels)
    assert not torch.allclose(mine, other), "the seed has no effect"


def check_interruption(method: Method, task: Task, pixels: Tensor) -> None:
    """Whatever stops learning, the method is afterwards what it was before."""
    state = {name: value.clone() for name, value in method.state_dict().items()}
    tasks, blocks = list(method.tasks), method.blocks(pixels)
    for problem in (ZeroDivisionError, KeyboardInterrupt):

        def stop(progress: Progress, problem: type[BaseException] = problem) -> None:
            raise problem

        with pytest.raises(problem):
            method.learn(task, TrainingContext(stop))
        assert method.tasks == tasks
        now = method.state_dict()
        assert list(now) == list(state)
        assert all(torch.equal(value, state[name]) for name, value in now.items())
        same(method.blocks(pixels), blocks)


def check_refusals(method: Method, good: Task, other: Task) -> None:
    """Wrong tasks are refused with a text that says what is wrong, and leave no trace."""
    tasks = list(method.tasks)
    smaller = Images(good.train.pixels[..., :-1, :-1], good.train.labels)
    kept = good.train.labels != good.n_classes - 1
    bad = {
        "images of shape": replace(good, train=smaller),
        f"no training images of: {good.class_names[-1]}": replace(good, train=good.train[kept]),
        "nothing to learn": replace(good, train=good.train[slice(0, 0)]),
    }
    if tasks:
        bad["learned before: " + ", ".join(sorted(other.class_names))] = replace(good, class_names=other.class_names)
    for text, task in bad.items():
        with pytest.raises(UserError, match=text):
            method.learn(task)
        assert method.tasks == tasks


def check_equal(one: Method, other: Method, pixels: Tensor) -> None:
    """Bit-identical in scores, state, calibration and description."""
    assert type(one) is type(other)
    assert one.tasks == other.tasks
    assert (one.image_shape, one.net_settings, one.settings) == (other.image_shape, other.net_settings, other.settings)
    same(one.blocks(pixels), other.blocks(pixels))
    mine, theirs = one.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    assert one.memory_bytes == other.memory_bytes
    assert one.n_parameters() == other.n_parameters()
    ways, others = one.calibrations(), other.calibrations()
    assert list(ways) == list(others)
    for name, way in ways.items():
        same([way.scales, way.shifts], [others[name].scales, others[name].shifts])


def same(one: Blocks, other: Blocks) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def close(one: Blocks, other: Blocks) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
