"""Distillation losses, with the numbers of the LwF.R, BiC and Mnemonics specifications."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clom.learning.distillation import soft_cross_entropy, soft_kl, teacher_of


def test_kl_of_lwf() -> None:
    student, teacher = torch.tensor([[1.0, 2, 3]]), torch.tensor([[3.0, 2, 1]])
    assert float(soft_kl(student, teacher, 2.0)) == pytest.approx(0.3201567, abs=1e-6)  # times tau^2 beta = 1
    assert float(soft_kl(teacher, teacher, 2.0)) == pytest.approx(0.0, abs=1e-7)
    by_the_code = nn.KLDivLoss()((student / 2).log_softmax(1), (teacher / 2).softmax(1)) * 2**2 * 0.25 * 3
    assert float(by_the_code) == pytest.approx(0.3201567, abs=1e-6)


def test_kl_of_mnemonics() -> None:
    new = torch.tensor([[1, 2, 0.5, 3], [0, 1, 1, 0]])
    old = torch.tensor([[0.5, 1.5, 0], [1, 0, 0]])
    assert float(soft_kl(new[:, :3], old, 2.0)) == pytest.approx(0.0577531, abs=1e-6)


def test_cross_entropy_of_bic() -> None:
    student, teacher = torch.tensor([[1, 2, 0.5]]), torch.tensor([[2.0, 0, -1]])
    assert float(soft_cross_entropy(student, teacher, 2.0)) == pytest.approx(1.1512866, abs=1e-6)
    # The minimum is the teacher's entropy, reached when the outputs differ by a constant.
    assert float(soft_cross_entropy(teacher + 5, teacher, 2.0)) == pytest.approx(0.9059592, abs=1e-6)


def test_the_softmax_is_over_classes() -> None:
    new, old = torch.tensor([[1.0, 2], [3, 0]]), torch.tensor([[0.0, 1], [2, 2]])
    assert float(soft_cross_entropy(new, old, 2.0)) == pytest.approx(0.8071303, abs=1e-6)  # 0.8236293 over the batch


def test_a_teacher_never_changes() -> None:
    student = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    teacher = teacher_of(student)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    student.train()
    (teacher(torch.randn(8, 3)).sum() + student(torch.randn(8, 3)).sum()).backward()
    torch.optim.SGD(student.parameters(), lr=1.0).step()
    assert not teacher.training
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
