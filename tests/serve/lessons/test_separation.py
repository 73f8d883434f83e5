"""AUC between the tasks of a model, on the images it stores."""

from __future__ import annotations

import torch

from clom.data.stream import Task
from clom.methods.families.base import Method
from clom.serve.lessons.separation import separation
from photos.pictures import clom_from_scratch, ncm, pictures


def taught(method: Method, *tasks: tuple[str, str]) -> Method:
    for number, names in enumerate(tasks):
        images = pictures(*names).images
        method.learn(Task(f"task {number}", names, images, images))
    return method


def test_one_number_for_each_pair_of_tasks() -> None:
    found = separation(taught(clom_from_scratch(), ("red", "green"), ("blue", "grey")))
    assert found is not None
    assert found["tasks"] == ["task 0", "task 1"]
    assert found["pictures"] == [2, 2], "one image of each class is kept"
    assert torch.tensor(found["auc"]).shape == (2, 2)
    assert all(0 <= value <= 1 for value in (found["auc"][0][1], found["auc"][1][0]))


def test_there_is_nothing_to_compare() -> None:
    assert separation(taught(clom_from_scratch(), ("red", "green"))) is None
    assert separation(taught(ncm(), ("red", "green"), ("blue", "grey"))) is None, "it keeps no images"
