"""What all tests share: one thread, so that they run beside other work, and a few real images."""

from __future__ import annotations

import pytest
import torch

from clom.data.formats import read_digits
from clom.data.images import DataSet
from clom.data.stream import Stream, split

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits() -> DataSet:
    """scikit-learn's digits, 8 x 8 pixels."""
    return read_digits()


@pytest.fixture(scope="session")
def tiny_stream(digits: DataSet) -> Stream:
    """Three tasks of two digits, 12 training images and 4 validation images of each class."""
    return split(digits, [2, 2, 2], train_per_class=16, test_per_class=8, validation=0.25)
