"""`check_stream`, and a stream that needs no data."""

from __future__ import annotations

from collections import Counter

from clom.data.formats import read_digits
from clom.data.images import DataSet, Images, resized_images
from clom.data.stream import Stream, Task, split
from clom.testing.expectations import require


def tiny_stream(image_size: int = 8, channels: int = 1) -> Stream:
    """Three tasks of two of scikit-learn's digits: of each class 12 training, 4 validation and 8 test images."""
    digits = read_digits()
    shape = (channels, image_size, image_size)
    if shape != tuple(digits.train.pixels.shape[1:]):
        digits = DataSet(
            digits.name, digits.class_names, resized_images(digits.train, shape), resized_images(digits.test, shape)
        )
    return split(digits, [2, 2, 2], train_per_class=16, test_per_class=8, validation=0.25)


def check_stream(stream: Stream) -> None:
    """What methods and evaluation rely on: tasks with images of every class, labels from 0 within each task, each class
    in one task only, square images of one shape."""
    require(len(stream) > 0, "The stream has no task", "a stream has at least one task")
    require(
        len(stream.tests) == len(stream),
        f"There are {len(stream)} tasks and {len(stream.tests)} test sets",
        "tests[k] are the test images of task k",
    )
    _check_names(stream)
    channels, height, width = stream.image_shape
    require(height == width, f"Images are {height} x {width}", "images are square")
    require(channels in (1, 3), f"Images have {channels} channels", "images are grey (1 channel) or RGB (3)")
    for task, test in zip(stream, stream.tests, strict=True):
        _check_task(task, test, stream.image_shape)
    first = stream[:1]
    require(
        isinstance(first, Stream) and len(first) == len(first.tests) == 1,
        "stream[:1] is not a stream of one task and one test set",
        "a slice of a stream is a stream",
    )


def _check_names(stream: Stream) -> None:
    for what, names in (
        ("task", [task.name for task in stream]),
        ("class", [name for task in stream for name in task.class_names]),
    ):
        again = [name for name, count in Counter(names).items() if count > 1]
        require(
            not again, f"The {what} {', '.join(again)} occurs more than once", f"every {what} has a name of its own"
        )
        require(all(names), f"A {what} has an empty name", f"every {what} has a name")


def _check_task(task: Task, test: Images, image_shape: tuple[int, int, int]) -> None:
    where = f"task '{task.name}'"
    require(task.n_classes > 0, f"There is no class in {where}", "a task has at least one class")
    parts = {"training": task.train, "validation": task.validation, "test": test}
    for part, images in parts.items():
        require(
            tuple(images.pixels.shape[1:]) == image_shape,
            f"The {part} images of {where} have shape {tuple(images.pixels.shape[1:])}, others {image_shape}",
            "all images of a stream have one shape",
        )
        found = set(images.labels.tolist())
        require(
            found <= set(range(task.n_classes)),
            f"The {part} images of {where} have labels {sorted(found)}, for {task.n_classes} classes",
            "labels count from 0 within their task",
        )
        missing = [name for label, name in enumerate(task.class_names) if label not in found]
        require(
            not missing,
            f"There are no {part} images of {', '.join(missing)} in {where}",
            "every class has training, validation and test images",
        )
    pixels = task.train.pixels
    require(
        bool((pixels != pixels[:1]).any()) or len(pixels) == 1,
        f"All training images of {where} are the same",
        "images differ",
    )
