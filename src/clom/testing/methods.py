"""`check_method`: what every system does, whoever wrote it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from clom.data.images import Images, to_unit
from clom.data.stream import Stream, Task
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.families.base import Method
from clom.storage.checkpoints import CheckpointFolder
from clom.storage.model_file import load_model, save_model
from clom.testing.expectations import all_close, all_equal, is_finite, refused, require
from clom.testing.streams import tiny_stream


def check_method(make: Callable[[int], Method], stream: Stream | None = None, *, deterministic: bool = False) -> None:
    """`make(seed)` gives a fresh method, small enough to learn the first two tasks of `stream` in a second or two.

    Checked is what `clom run`, `resume`, `scores` and model files rely on: it learns one task after another, scores
    images one by one, saves, loads and resumes, is restored by checkpoints, gives the same result for the same seed,
    and refuses wrong input. `stream` has at least two tasks; by default it is `tiny_stream()`. With `deterministic` the
    result need not depend on the seed.
    """
    stream = tiny_stream() if stream is None else stream
    first, second = stream[0], stream[1]
    pixels = stream.tests[0].pixels
    method = make(0)
    require(isinstance(method, Method), f"{type(method).__name__} is not a clom.Method", "a method is a clom.Method")
    require(method.tasks == [], "A fresh method has learned tasks", "a method starts with no task")
    check_refusals(method, first, second)

    reports = _learn_first(method, first)
    check_blocks(method, pixels, [first])
    check_repeats(make, method, first, pixels)
    if not deterministic:
        check_seed(make, method, first, pixels)
    check_refusals(method, second, first)
    check_interruption(method, second, pixels)
    with tempfile.TemporaryDirectory() as folder:
        loaded, resumed = (_stored(method, Path(folder) / "model.safetensors") for _ in range(2))
        check_equal(loaded, method, pixels, "a loaded model is the saved one")
        old = method.blocks(pixels)
        for continued in (method, loaded):
            continued.learn(second)
            check_blocks(continued, pixels, [first, second])
        check_equal(loaded, method, pixels, "a loaded model learns on as the saved one would have")
        _learn_in_two_parts(resumed, second, Path(folder) / "checkpoints", crash_at=1 + reports // 2)
        check_equal(resumed, method, pixels, "a task that is resumed ends as if it had never been interrupted")
    if method.exact_memory:
        require(
            torch.equal(method.blocks(pixels)[0], old[0]),
            "The first task's block changed while the second was learned",
            "with exact_memory the blocks of old tasks stay bit-identical",
        )
    check_laws(method, stream)
    check_capabilities(method, pixels)
    check_forgetting(method, pixels)


def _learn_first(method: Method, task: Task) -> int:
    """Learn, and count the progress reports."""
    reports: list[Progress] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(54321)  # no state that an earlier call may have left
        before = torch.get_rng_state()
        returned = method.learn(task, TrainingContext(reports.append))
        untouched = torch.equal(torch.get_rng_state(), before)
    require(returned is method, "learn does not return the method", "learn returns self")
    require(
        untouched,
        "learn draws from, or seeds, torch's global generator",
        "learning leaves the caller's randomness alone",
    )
    require(
        reports and reports[-1].done == reports[-1].total,
        "Progress is " + ("reported, but not to its end" if reports else "never reported"),
        "_learn reports progress to the context, the last time with done == total",
    )
    return len(reports)


def _stored(method: Method, path: Path) -> Method:
    try:
        save_model(path, method)
        return load_model(path)
    except UserError as problem:
        raise AssertionError(
            f"Saving or loading failed: {problem} The contract: all state is in parameters and buffers, settings are "
            "clom settings, and the class is registered (clom.register_method)."
        ) from problem


def _learn_in_two_parts(method: Method, task: Task, folder: Path, crash_at: int) -> None:
    """A crash in the middle of the task, then the same call again; each step is kept."""
    left = crash_at

    def crash(progress: Progress) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise _Crash

    for on_progress in (crash, lambda progress: None):
        try:
            method.learn(task, TrainingContext(on_progress, CheckpointFolder(folder, 1, "check", every=0)))
        except _Crash:
            continue
        return


class _Crash(Exception):
    pass


def check_blocks(method: Method, pixels: Tensor, tasks: list[Task]) -> None:
    """One finite block per task, independent of how the images are portioned and given."""
    blocks = method.blocks(pixels)
    shapes = [tuple(block.shape) for block in blocks]
    wanted = [(len(pixels), task.n_classes) for task in tasks]
    require(
        shapes == wanted,
        f"blocks returned shapes {shapes} instead of {wanted}",
        "one block [images, classes of the task] for each learned task",
    )
    learned = [(task.name, task.class_names) for task in method.tasks]
    require(
        learned == [(task.name, task.class_names) for task in tasks],
        f"tasks holds {learned}",
        "tasks lists what was learned, in order",
    )
    for number, block in enumerate(blocks):
        name = f"The block of task {number}"
        require(block.dtype == torch.float32, f"{name} is {block.dtype}", "blocks are float32")
        require(not block.requires_grad, f"{name} carries gradients", "blocks are plain numbers")
        require(is_finite(block), f"{name} holds NaN or infinity", "blocks are finite")
        require(bool((block.std(0) > 0).all()), f"{name} is the same for every image", "scores depend on the image")
        require(
            torch.equal(method.block(pixels, number), block),
            f"block(pixels, {number}) differs from blocks(pixels)[{number}]",
            "block gives one of the blocks, bit by bit",
        )
    require(
        all_close(method.blocks(pixels[:1]), [block[:1] for block in blocks]),
        "The first image alone has other scores than among others",
        "each image is scored by itself",
    )
    require(
        all_close(method.blocks(to_unit(pixels)), blocks),
        "Images as numbers in [0, 1] have other scores than as bytes",
        "blocks takes uint8 pixels and floating point images in [0, 1] alike",
    )
    empty = [tuple(block.shape) for block in method.blocks(pixels[:0])]
    require(
        empty == [(0, task.n_classes) for task in tasks],
        f"No images give blocks of shapes {empty}",
        "any number of images can be scored, none included",
    )


def check_laws(method: Method, stream: Stream) -> None:
    """TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR), and no calibration changes an answer within a task."""
    n_tasks = len(method.tasks)
    book = Scorebook(stream.tests[:n_tasks])
    book.update(method)
    calibrations = method.calibrations()
    require("none" in calibrations, f"calibrations offers {list(calibrations)}", "'none' is one of the calibrations")
    for name, calibrate in calibrations.items():
        require(
            is_finite(torch.cat([calibrate.scales, calibrate.shifts])) and bool((calibrate.scales > 0).all()),
            f"Calibration '{name}' has scales {calibrate.scales.tolist()} and shifts {calibrate.shifts.tolist()}",
            "scales are positive, and all numbers are finite",
        )
        for raw in (book.blocks(test) for test in range(n_tasks)):
            require(
                all_equal([block.argmax(1) for block in raw], [block.argmax(1) for block in calibrate(raw)]),
                f"Calibration '{name}' changes the best class within a task",
                "calibration never changes an answer within a task",
            )
    evaluation = evaluate(book, calibrations)
    for name, way in evaluation.by_calibration.items():
        require(
            evaluation.til + way.task_detection - 1 - 1e-12
            <= way.cil
            <= min(evaluation.til, way.task_detection) + 1e-12,
            f"TIL {evaluation.til}, TaskDR {way.task_detection}, CIL {way.cil} (calibration '{name}')",
            "TIL + TaskDR - 1 <= CIL <= min(TIL, TaskDR)",
        )
    require(
        method.n_parameters() > 0,
        "n_parameters is 0",
        "n_parameters counts the numbers that inference needs, buffers included (override it if they are in buffers)",
    )
    require(method.memory_bytes >= 0, f"memory_bytes is {method.memory_bytes}", "memory_bytes counts stored samples")
    for group, fractions in method.capacity().items():
        units = method.unit_counts().get(group, [10_000] * len(fractions))  # unknown: fractions have four digits
        used = [round(fraction * count) for fraction, count in zip(fractions, units, strict=True)]
        require(
            used == sorted(used) and all(0 <= fraction <= 1 for fraction in fractions),
            f"The capacity of '{group}' is {list(fractions)}, of {list(units)} units",
            "capacity gives the fraction of units in use after each task; their number never shrinks",
        )


def check_capabilities(method: Method, pixels: Tensor) -> None:
    """What a method offers besides blocks, for OOD scores; see `Method.offers`."""
    for task, learned in enumerate(method.tasks):
        width = None
        if method.offers("features"):
            features = method.features(pixels, task)
            width = features.shape[-1]
            require(
                features.ndim == 2 and len(features) == len(pixels) and is_finite(features),
                f"features returned shape {tuple(features.shape)} for {len(pixels)} images, or NaN or infinity",
                "features gives finite numbers [images, d]",
            )
            require(not features.requires_grad, "features carry gradients", "features are plain numbers")
        if method.offers("linear_head"):
            weight, bias = method.linear_head(task)
            require(
                tuple(weight.shape) == (learned.n_classes, width) and tuple(bias.shape) == (learned.n_classes,),
                f"linear_head returned shapes {tuple(weight.shape)} and {tuple(bias.shape)} for {learned.n_classes} "
                f"classes and {width} features",
                "linear_head gives weight [classes, d] and bias [classes] of the layer that reads the features",
            )
        if method.offers("task_logits"):
            images = to_unit(pixels[:4]).clone().requires_grad_()
            logits = method.task_logits(images, task)
            require(
                tuple(logits.shape) == (len(images), learned.n_classes),
                f"task_logits returned shape {tuple(logits.shape)} for {len(images)} images",
                "task_logits gives [images, classes of the task]",
            )
            (gradient,) = torch.autograd.grad(logits.sum(), images, allow_unused=True)
            require(
                gradient is not None and is_finite(gradient),
                "task_logits has no finite gradient with respect to the images",
                "task_logits can be differentiated with respect to the images",
            )


def check_forgetting(method: Method, pixels: Tensor) -> None:
    """Methods that can forget a task leave the others alone; those that cannot say so."""
    method, blocks = copy.deepcopy(method), method.blocks(pixels)
    tasks = list(method.tasks)
    try:
        method.forget(0)
    except UserError:
        remaining = blocks
    else:
        tasks, remaining = tasks[1:], blocks[1:]
    require(
        method.tasks == tasks and all_equal(method.blocks(pixels), remaining),
        "After forget(0) the other tasks' scores differ",
        "forget removes one task and leaves the scores of the others bit-identical, or raises a UserError",
    )


def check_repeats(make: Callable[[int], Method], method: Method, first: Task, pixels: Tensor) -> None:
    """The same seed gives bit-identical results, whatever the caller's random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        check_equal(make(0).learn(first), method, pixels, "the same seed gives the same result, bit by bit")


def check_seed(make: Callable[[int], Method], method: Method, first: Task, pixels: Tensor) -> None:
    (mine,), (other,) = method.blocks(pixels), make(1).learn(first).blocks(pixels)
    require(not torch.allclose(mine, other), "Another seed gives the same scores", "the seed decides everything random")


def check_interruption(method: Method, task: Task, pixels: Tensor) -> None:
    """Whatever stops learning, the method is afterwards what it was before."""
    contract = "if learning fails or is interrupted, the method is as it was before"
    state = {name: value.clone() for name, value in method.state_dict().items()}
    tasks, blocks = list(method.tasks), method.blocks(pixels)
    for problem in (_Crash, KeyboardInterrupt):

        def stop(progress: Progress, problem: type[BaseException] = problem) -> None:
            raise problem

        try:
            method.learn(task, TrainingContext(stop))
        except problem:
            pass
        else:
            raise AssertionError(
                f"{problem.__name__} from the progress display is swallowed. The contract: {contract}."
            )
        now = method.state_dict()
        require(method.tasks == tasks, f"An interrupted call leaves the tasks {method.tasks}", contract)
        require(
            list(now) == list(state) and all_equal(list(now.values()), list(state.values())),
            "An interrupted call leaves other parameters or buffers",
            contract,
        )
        require(all_equal(method.blocks(pixels), blocks), "An interrupted call leaves other scores", contract)


def check_refusals(method: Method, good: Task, other: Task) -> None:
    """Wrong tasks are refused with a text that says what is wrong, and leave no trace."""
    tasks = list(method.tasks)
    smaller = Images(good.train.pixels[..., :-1, :-1], good.train.labels)
    kept = good.train.labels != good.n_classes - 1
    bad = {
        "A task with images of another shape": ("images of shape", replace(good, train=smaller)),
        "A task without images of one class": (good.class_names[-1], replace(good, train=good.train[kept])),
        "A task without images": ("nothing to learn", replace(good, train=good.train[slice(0, 0)])),
    }
    if tasks:
        again = replace(good, class_names=other.class_names)
        bad["A task with classes that were learned before"] = (other.class_names[0], again)
    for what, (word, task) in bad.items():
        with refused(what, word):
            method.learn(task)
        require(method.tasks == tasks, f"{what} leaves a trace in tasks", "a refused task changes nothing")


def check_equal(one: Method, other: Method, pixels: Tensor, contract: str = "two methods are equal") -> None:
    """Bit-identical in scores, state, calibration and description."""
    require(type(one) is type(other), f"One is a {type(one).__name__}, one a {type(other).__name__}", contract)
    for what in ("tasks", "image_shape", "net_settings", "settings", "memory_bytes"):
        mine, theirs = getattr(one, what), getattr(other, what)
        require(mine == theirs, f"{what} is {mine!r:.200} and {theirs!r:.200}", contract)
    state, states = one.state_dict(), other.state_dict()
    require(list(state) == list(states), "The names of parameters and buffers differ", contract)
    changed = [name for name, value in state.items() if not torch.equal(value, states[name])]
    require(not changed, f"These parameters or buffers differ: {', '.join(changed[:10])}", contract)
    require(all_equal(one.blocks(pixels), other.blocks(pixels)), "Scores differ", contract)
    require(one.n_parameters() == other.n_parameters(), "n_parameters differs", contract)
    ways, others = one.calibrations(), other.calibrations()
    require(list(ways) == list(others), f"calibrations are {list(ways)} and {list(others)}", contract)
    for name, way in ways.items():
        same = all_equal([way.scales, way.shifts], [others[name].scales, others[name].shifts])
        require(same, f"The calibrations '{name}' differ", contract)
