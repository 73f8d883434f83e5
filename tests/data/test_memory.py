"""The replay buffer: the same number of images per class, saved with the model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clom.data.images import Images
from clom.data.memory import Memory, per_class


def images_of(counts: list[int], side: int = 2) -> Images:
    """Image number i is filled with i, so that it can be identified."""
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    pixels = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].repeat(1, 1, side, side)
    return Images(pixels, labels)


def keep(memory: Memory, task: int, images: Images) -> None:
    memory.add(task, images.pixels, images.labels)


def drawn(images: Images, count: int, seed: int) -> list[int]:
    chosen = per_class(images, count, torch.Generator().manual_seed(seed))
    return [int(value) for value in chosen.pixels[:, 0, 0, 0]]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 14), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_equal_count_per_class_or_all_if_there_are_fewer(counts: list[int], count: int, seed: int) -> None:
    images = images_of(counts)
    chosen = per_class(images, count, torch.Generator().manual_seed(seed))
    assert torch.bincount(chosen.labels, minlength=len(counts)).tolist() == [min(count, n) for n in counts]
    numbers = chosen.pixels[:, 0, 0, 0].long()
    assert len(set(numbers.tolist())) == len(chosen)
    assert torch.equal(images.labels[numbers], chosen.labels)


def test_the_draw_depends_on_the_generator() -> None:
    images = images_of([50, 50])
    assert drawn(images, 5, seed=1) == drawn(images, 5, seed=1)
    assert drawn(images, 5, seed=1) != drawn(images, 5, seed=2)
    assert drawn(images, 5, seed=1) != [*range(5), *range(50, 55)]


def test_memory_stores_images_with_task_and_label() -> None:
    memory = Memory()
    assert len(memory) == 0
    assert memory.n_bytes == 0
    keep(memory, 0, images_of([2, 1]))
    keep(memory, 1, images_of([1]))
    assert len(memory) == 4
    assert memory.labels.tolist() == [0, 0, 1, 0]
    assert memory.tasks.tolist() == [0, 0, 0, 1]
    assert memory.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 0]
    assert memory.pixels.dtype == torch.uint8


def test_bytes_are_pixels() -> None:
    memory = Memory()
    keep(memory, 0, images_of([3, 2], side=4))
    assert memory.n_bytes == 5 * 1 * 4 * 4


def test_memory_is_a_copy() -> None:
    source = images_of([3])
    memory = Memory()
    keep(memory, 0, source)
    source.pixels.fill_(255)
    assert memory.pixels[:, 0, 0, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("already", [[], [1], [4, 4]])
def test_a_state_dict_of_any_size_loads(already: list[int]) -> None:
    full = Memory()
    keep(full, 0, images_of([2, 2]))
    keep(full, 1, images_of([3]))
    other = Memory()
    if already:
        keep(other, 7, images_of(already, side=3))
    other.load_state_dict(full.state_dict())
    assert torch.equal(other.pixels, full.pixels)
    assert torch.equal(other.labels, full.labels)
    assert torch.equal(other.tasks, full.tasks)
    other.pixels.fill_(9)
    assert int(full.pixels[0, 0, 0, 0]) == 0
    keep(other, 2, images_of([1]))
    assert other.tasks.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]


def test_an_empty_state_dict_empties_the_buffer() -> None:
    memory = Memory()
    keep(memory, 0, images_of([2]))
    memory.load_state_dict(Memory().state_dict())
    assert len(memory) == 0
    assert memory.n_bytes == 0


def test_a_state_dict_of_an_outer_module_loads() -> None:
    """As inside a method: with a prefix."""
    outer, inner = torch.nn.Module(), Memory()
    keep(inner, 0, images_of([2]))
    outer.memory = inner
    again = torch.nn.Module()
    again.memory = Memory()
    again.load_state_dict(outer.state_dict())
    assert torch.equal(again.get_buffer("memory.pixels"), inner.pixels)


def test_an_incomplete_state_dict_is_an_error() -> None:
    state = Memory().state_dict()
    del state["labels"]
    with pytest.raises(RuntimeError, match="labels"):
        Memory().load_state_dict(state)


def test_shrinking_keeps_the_first_of_every_class_of_every_task() -> None:
    memory = Memory()
    keep(memory, 0, images_of([3, 1]))
    keep(memory, 1, images_of([4]))
    memory.shrink(2)
    assert memory.tasks.tolist() == [0, 0, 0, 1, 1]
    assert memory.labels.tolist() == [0, 0, 1, 0, 0]
    assert memory.pixels[:, 0, 0, 0].tolist() == [0, 1, 3, 0, 1]
    memory.shrink(0)
    assert len(memory) == 0


def test_floats_take_four_bytes() -> None:
    memory = Memory()
    images = images_of([2], side=3)
    memory.add(0, images.pixels / 255, images.labels)
    assert memory.pixels.dtype == torch.float32
    assert memory.n_bytes == 2 * 9 * 4


def test_selecting_by_rows_or_by_a_mask() -> None:
    memory = Memory()
    keep(memory, 0, images_of([2, 1]))
    keep(memory, 1, images_of([2]))
    memory.select(torch.tensor([4, 0, 2]))
    assert memory.tasks.tolist() == [1, 0, 0]
    assert memory.labels.tolist() == [0, 0, 1]
    assert memory.pixels[:, 0, 0, 0].tolist() == [1, 0, 2]
    memory.select(torch.tensor([True, False, True]))
    assert memory.pixels[:, 0, 0, 0].tolist() == [1, 2]


def test_stored_features_can_be_loaded() -> None:
    memory, other = Memory(), Memory()
    memory.add(0, torch.rand(3, 4, 5), torch.tensor([0, 1, 1]))
    other.load_state_dict(memory.state_dict())
    assert torch.equal(other.pixels, memory.pixels)
