"""RPS-Net: reference values, frozen paths, teachers on old paths, and accuracy."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.data.images import DataSet
from clom.data.stream import Stream, split
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve
from clom.learning.distillation import soft_kl, teacher_of
from clom.methods.a_rps.method import ARps, ARpsSettings, phi, repo_distillation, trainable
from clom.methods.families.base import LearnedTask
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.storage.model_file import load_model, save_model
from clom.testing.methods import check_equal, check_method

SMALL = {"widths": [8, 8, 12], "pools": [2], "modules": 4}
DEEPER = {"widths": [6, 6, 8, 8], "pools": [1, 3], "modules": 2}


def make(seed: int = 0, net: NetSettings | None = None, **settings: Any) -> ARps:
    values = {"paths": SMALL, "plan": {"epochs": 2, "batch": 16}, "memory": {"size": 20}} | settings
    return ARps(net or AlexNetSettings(), ARpsSettings.model_validate(values), (1, 8, 8), seed)


@pytest.mark.parametrize(
    "settings",
    [
        {"switching": {"interval": 1}, "prefer_free": True},
        {"switching": {"interval": 2}, "paths": DEEPER, "distill": "kl_old"},
        {"switching": {"kind": "fisher_capacity", "samples": 5, "least_idle": 1.0}, "paths": SMALL | {"modules": 8}},
        {"switching": {"kind": "none"}, "repeat_exemplars": 3},
        {"switching": {"interval": 1}, "candidates": 2, "prefer_free": True},
    ],
)
def test_is_a_method(settings: dict[str, Any], tiny_stream: Stream) -> None:
    check_method(lambda seed: make(seed, **settings), tiny_stream)


def test_the_experiments_network_is_not_used(tiny_stream: Stream) -> None:
    one = make(net=AlexNetSettings()).learn(tiny_stream[0])
    other = make(net=ResNet18Settings(width=8)).learn(tiny_stream[0])
    pixels = tiny_stream.tests[0].pixels
    assert torch.equal(one.blocks(pixels)[0], other.blocks(pixels)[0])


def test_phi() -> None:
    assert [phi(k, 2, 2.5) for k in range(10)] == [1, 1, 1, 2.5, 5, 7.5, 10, 12.5, 15, 17.5]


def test_trained_modules() -> None:
    path = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
    fixed = torch.tensor([[1, 0, 0, 0]] * 3, dtype=torch.bool)
    assert trainable(path, fixed).int().tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]


def test_distillation() -> None:
    """The teacher's output for the new class, 9, is removed before."""
    outputs, teacher, labels = torch.tensor([[1, 2, 0.5]]), torch.tensor([[2.0, 0, 9]])[:, :2], torch.tensor([2])
    assert float(repo_distillation(outputs, teacher, labels, 1)) == pytest.approx(0.3719987, abs=1e-6)
    weighted = phi(3, 2, 2.5) * repo_distillation(outputs, teacher, labels, 128)
    assert float(weighted) == pytest.approx(0.0072656, abs=1e-7)
    assert float(soft_kl(outputs[:, :2], teacher, 2.0)) == pytest.approx(0.2574033, abs=1e-6)
    unclamped = soft_kl(outputs, torch.tensor([[2.0, 0, 1]]), 2.0)
    assert float(unclamped) == pytest.approx(0.1952833, abs=1e-6)


def test_the_loss_with_the_outputs_of_future_classes() -> None:
    """By hand: outputs [1, 2, .5, 0] of which two are old and one is of a future class, targets [2, 0, 1, 0].

    The cross-entropy of label 2 over the three classes seen is 1.9643688. Distillation is over all four outputs, with
    terms .2320988, -.1502053, .0760381, .0068545 of which the negative one does not count, divided by a batch of 2:
    1.9643688 + .3149914 / 2.
    """
    method = make(n_classes=4, plan={"epochs": 1, "batch": 2})
    method.open_task(LearnedTask("old", ("a", "b")))
    method.open_task(LearnedTask("new", ("c",)))
    assert method.head.n_outputs == 4
    method.backbone = nn.Identity()  # type: ignore[assignment]
    method.head = nn.Identity()  # type: ignore[assignment]
    loss_of = method._loss(Answer([2.0, 0, 9, 9]))
    assert float(loss_of(torch.tensor([[1, 2, 0.5, 0]]), torch.tensor([2]))) == pytest.approx(2.1218645, abs=1e-6)


class Answer(nn.Module):
    """A teacher with these outputs for any image."""

    def __init__(self, outputs: list[float]) -> None:
        super().__init__()
        self.outputs = torch.tensor([outputs])

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs


def test_the_head_has_all_outputs_from_the_start(tiny_stream: Stream) -> None:
    check_method(lambda seed: make(seed, n_classes=6, switching={"interval": 1}, prefer_free=True), tiny_stream)
    method = make(n_classes=6).learn(tiny_stream[0])
    before = {name: value.clone() for name, value in method.head.state_dict().items()}
    method.learn(tiny_stream[1])
    assert list(method.head.state_dict()) == list(before), "nothing is added"
    old, new = (state["parts.0.weight"][4:] for state in (before, method.head.state_dict()))
    assert not torch.equal(old, new), "distillation trains the outputs of future classes"
    assert [block.shape[1] for block in method.blocks(tiny_stream.tests[0].pixels)] == [2, 2]


def test_distillation_of_equal_outputs_is_zero() -> None:
    outputs, labels = torch.tensor([[2.0, -1, 0, 1], [0.3, 4, 1, 0]]), torch.tensor([3, 2])
    assert float(repo_distillation(outputs, outputs[:, :2], labels, 2)) == pytest.approx(0, abs=1e-6)
    assert float(soft_kl(outputs[:, :2], outputs[:, :2], 2.0)) == pytest.approx(0, abs=1e-6)


def test_quotas() -> None:
    memory = ARpsSettings.model_validate({"memory": {"size": 2000}}).memory
    assert [memory.quota(10 * (k + 1)) for k in range(10)] == [200, 100, 66, 50, 40, 33, 28, 25, 22, 20]


def test_memory_is_divided_among_classes(tiny_stream: Stream) -> None:
    method = make()
    for n_classes, task in zip((2, 4, 6), tiny_stream, strict=True):
        method.learn(task)
        counts = torch.unique(torch.stack([method.memory.tasks, method.memory.labels]), dim=1, return_counts=True)[1]
        assert counts.tolist() == [20 // n_classes] * n_classes


def test_frozen_paths_do_not_change(tiny_stream: Stream) -> None:
    """Modules that the task does not train stay bit-identical, including their statistics."""
    method = make(switching={"interval": 1}, prefer_free=True).learn(tiny_stream[0])
    for task in tiny_stream[1:]:
        before = copy.deepcopy(method.backbone)
        used = before.fixed() | before.path()
        method.learn(task)
        assert torch.equal(method.backbone.fixed(), used)
        pairs = zip(before.modules_in(used), method.backbone.modules_in(used), strict=True)
        for old, new in pairs:
            for name, value in old.state_dict().items():
                assert torch.equal(new.state_dict()[name], value), name
        trained = method.backbone.modules_in(trainable(method.backbone.path(), used))
        norms = [module for part in trained for module in part.modules() if isinstance(module, nn.BatchNorm2d)]
        assert len(norms) == 5, "one in the first level, two in the other two"
        assert all(norm.num_batches_tracked is not None and norm.num_batches_tracked > 0 for norm in norms)


@pytest.mark.parametrize(
    ("rule", "counts"),
    [
        ({"interval": 1}, [1, 2, 3]),
        ({"interval": 2}, [1, 1, 2]),
        ({"kind": "none"}, [1, 1, 1]),
        ({"kind": "fisher_capacity", "interval": 2, "least_idle": 0, "samples": 2}, [1, 1, 2]),
        ({"kind": "fisher_capacity", "interval": 2, "least_idle": 1.1, "samples": 2}, [1, 2, 3]),
    ],
)
def test_paths_switch_by_rule(rule: dict[str, Any], counts: list[int], tiny_stream: Stream) -> None:
    method = make(switching=rule, prefer_free=True, plan={"epochs": 1, "batch": 16})
    found = []
    for task in tiny_stream:
        method.learn(task)
        found.append(len(method.backbone.paths))
    assert found == counts
    assert method.backbone.paths[0].tolist() == [0, 0, 0]


def test_a_loaded_model_has_its_paths_and_switches_on_time(tiny_stream: Stream, tmp_path: Path) -> None:
    method = make(switching={"interval": 1}, plan={"epochs": 1, "batch": 16}, prefer_free=True)
    for task in tiny_stream:
        method.learn(task)
    save_model(tmp_path / "model", method)
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, ARps)
    check_equal(loaded, method, tiny_stream.tests[0].pixels)
    assert loaded.backbone.paths.tolist() == method.backbone.paths.tolist()
    assert len(loaded.backbone.paths) == 3
    assert bool(loaded.switch_due)


def test_the_teacher_has_the_previous_paths_only(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs are those of the method before the task, although the new path has new modules."""
    method = make(switching={"interval": 1}, prefer_free=True).learn(tiny_stream[0])
    pixels = tiny_stream.tests[0].pixels
    images = pixels.expand(-1, 3, -1, -1) / 255
    expected, n_paths, outputs = method.blocks(pixels)[0], len(method.backbone.paths), list[Tensor]()

    def observed(student: nn.Module) -> nn.Module:
        teacher = teacher_of(student)
        outputs.append(teacher(images)[:, :2])
        return teacher

    monkeypatch.setattr("clom.methods.a_rps.method.teacher_of", observed)
    method.learn(tiny_stream[1])
    assert len(method.backbone.paths) == n_paths + 1
    (of_teacher,) = outputs
    torch.testing.assert_close(of_teacher, expected)


def test_a_path_of_frozen_modules_is_warned_about(tiny_stream: Stream) -> None:
    method = make(switching={"interval": 1}, paths={**SMALL, "modules": 1}).learn(tiny_stream[0])
    with pytest.warns(UserWarning, match="All modules on the random path .* are frozen already"):
        method.learn(tiny_stream[1])


def test_the_best_candidate_on_held_out_images_is_used(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies, made = iter([0.0, 0.2, 0.7, 0.4]), []

    def accuracy(self: ARps, task: object) -> float:
        made.append(self.backbone)
        return next(accuracies)

    monkeypatch.setattr(ARps, "_accuracy", accuracy)
    method = make(switching={"interval": 1}, prefer_free=True).learn(tiny_stream[0])
    method.settings = method.settings.model_copy(update={"candidates": 3})
    method.learn(tiny_stream[1])
    assert method.backbone is made[2]
    assert len({tuple(net.paths[-1].tolist()) for net in made[1:]}) > 1, "each candidate draws its own path"


def test_candidates_need_held_out_images(tiny_stream: Stream) -> None:
    task = replace(tiny_stream[0], validation=tiny_stream[0].validation[slice(0, 0)])
    make().learn(task)
    with pytest.raises(UserError, match="no validation images to select a candidate: set candidates=1"):
        make(candidates=2).learn(task)


def test_fisher_information_by_hand(tiny_stream: Stream) -> None:
    """The mean squared per-image gradient of the log likelihood, by finite differences for one weight."""
    method = make(memory={"size": 0}).learn(tiny_stream[0])
    pixels, labels = tiny_stream[0].train.pixels, tiny_stream[0].train.labels
    fisher = method._fisher(tiny_stream[0], 1000)
    method.double()
    weights = [w for module in method.backbone.modules_in(method.backbone.path()) for w in module.parameters()]
    assert fisher.shape == (sum(weight.numel() for weight in weights),)
    weight, position, step = weights[0].data, int(fisher[: weights[0].numel()].argmax()), 1e-5
    place, likelihoods = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), weight.shape)), []
    for change in (step, -2 * step):
        weight[place] += change
        likelihoods.append(method.blocks(pixels.double() / 255)[0].log_softmax(1).gather(1, labels[:, None]))
    by_hand = ((likelihoods[0] - likelihoods[1]) / (2 * step)).square().mean()
    assert float(fisher[position]) == pytest.approx(float(by_hand), rel=1e-2)


def test_published_settings_in_the_paper_budget() -> None:
    settings = ARpsSettings.model_validate(resolve("cifar100-10t", "a-rps", "paper").settings)
    assert settings.paths == ARpsSettings().paths
    assert (settings.candidates, settings.switching.interval, settings.gamma) == (8, 2, 2.5)
    assert (settings.memory.size, settings.plan.epochs, settings.plan.batch) == (2000, 100, 128)
    rates = [1e-3 * settings.plan.schedule.factor(epoch, 100) for epoch in (0, 19, 20, 40, 60, 80, 99)]
    assert rates == pytest.approx([1e-3, 1e-3, 5e-4, 2.5e-4, 1.25e-4, 6.25e-5, 6.25e-5])
    longer = ARpsSettings.model_validate(resolve("cifar100-20t", "a-rps", "paper").settings)
    assert phi(19, longer.switching.interval, longer.gamma) < 20, "distillation does not dominate after 20 tasks"
    assert ARpsSettings.model_validate(resolve("cifar10-5t", "a-rps", "paper").settings).memory.size == 200


def test_learns_digits(digits: DataSet) -> None:
    """Fine-tuning reaches a CIL accuracy of 33 percent; without freezing or replay it is far below this."""
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    method = make(plan={"epochs": 12, "batch": 16}, memory={"size": 60}, paths={**SMALL, "widths": [16, 16, 32]})
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    result = evaluate(book, method.calibrations())
    assert result.til > 0.95
    assert result.preferred.cil > 0.85
