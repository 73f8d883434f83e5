"""Rows of numbers as images: where each number goes, and what black and white mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clom.estimator.arrays import Layout, Range, form_of, layout_of


@pytest.mark.parametrize(
    ("n_features", "shape", "picture", "side"),
    [
        (64, (1, 8, 8), True, 8),
        (784, (1, 28, 28), True, 28),
        (3072, (3, 32, 32), True, 32),
        (192, (3, 8, 8), True, 8),
        (3, (1, 2, 2), False, 8),  # not a colour picture of one pixel
        (12, (1, 4, 4), False, 8),
        (4, (1, 2, 2), False, 8),
        (1, (1, 1, 1), False, 8),
        (65, (1, 9, 9), False, 9),
        (10, (1, 4, 4), False, 8),
        (25, (1, 5, 5), False, 10),
    ],
)
def test_the_form_is_guessed(n_features: int, shape: tuple[int, int, int], picture: bool, side: int) -> None:
    layout = layout_of(n_features, None)
    assert layout == Layout(shape, picture)
    assert layout.side == side


def test_a_given_form_counts() -> None:
    assert layout_of(4, (2, 2)) == Layout((1, 2, 2))
    assert layout_of(12, (3, 2, 2)) == Layout((3, 2, 2))
    assert layout_of(64, (1, 4, 16)).side == 16


@pytest.mark.parametrize("shape", [(64,), (2, 4, 8), (4, 4, 4), (1, 1, 8, 8), (1, -8, -8), (0, 0)])
def test_impossible_forms_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="image_shape"):
        layout_of(64, shape)


def test_forms_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"49 values, but X has 64 features"):
        layout_of(64, (7, 7))


def test_every_number_has_its_place() -> None:
    """Three features in a 2 x 2 square, every pixel enlarged to 4 x 4; the fourth is black."""
    images = layout_of(3, None).images(np.array([[10, 20, 30]], np.uint8))
    assert images.shape == (1, 1, 8, 8)
    expected = torch.tensor([[10, 20], [30, 0]]).repeat_interleave(4, 0).repeat_interleave(4, 1)
    assert torch.equal(images[0, 0].long(), expected)


def test_pictures_are_left_as_they_are() -> None:
    rows = np.arange(2 * 192).reshape(2, 192).astype(np.uint8)
    assert np.array_equal(layout_of(192, None).images(rows).numpy(), rows.reshape(2, 3, 8, 8))


def test_oblong_pictures_get_black_borders() -> None:
    image = layout_of(8 * 4, (8, 4)).images(np.full((1, 32), 7, np.uint8))[0, 0]
    assert image.shape == (8, 8)
    assert image[:, 2:6].eq(7).all()
    assert int(image.sum()) == 32 * 7


def test_form_of_images_and_rows() -> None:
    assert form_of(np.zeros((5, 64))) is None
    assert form_of(np.zeros((5, 8, 6))) == (1, 8, 6)
    assert form_of(np.zeros((5, 3, 8, 6))) == (3, 8, 6)
    assert form_of([[[1, 2], [3, 4]]]) == (1, 2, 2)
    assert form_of(np.zeros(5)) is None


def test_values_become_bytes() -> None:
    scale = Range.of(np.array([[-1.0, 3.0], [0.0, 1.0]]))
    assert scale == Range(-1.0, 3.0)
    given = np.array([-1.0, 3.0, 1.0, -99.0, 99.0, 0.0])
    assert scale.bytes(given).tolist() == [0, 255, 128, 0, 255, 64]  # halves to even: 127.5 is 128
    assert scale.share_outside(given) == pytest.approx(2 / 6)


def test_bytes_stay_bytes() -> None:
    values = np.array([[3, 9], [200, 30]], np.uint8)
    assert np.array_equal(Range.of(values).bytes(values), values)


def test_one_value_only_is_black() -> None:
    assert Range.of(np.full(3, 5.0)).bytes(np.full(3, 5.0)).tolist() == [0, 0, 0]


@given(st.lists(st.floats(-1e100, 1e100), min_size=2, max_size=20))
def test_order_is_kept_whatever_the_range(numbers: list[float]) -> None:
    values = np.sort(np.array(numbers))
    found = Range.of(values).bytes(values).astype(int)
    assert np.all(np.diff(found) >= 0)
    assert found[0] == 0
    assert found[-1] == (255 if values[-1] > values[0] else 0)
