"""CLOM: zero forgetting with any optimiser and network, scores, and accuracy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.data.images import DataSet, to_unit
from clom.data.stream import Stream, split
from clom.data.views import Augmentation, rotate
from clom.errors import UserError
from clom.evaluation.metrics import Evaluation, evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.calibration import Affine, CalibrationSettings
from clom.learning.context import TrainingContext
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import ContrastiveSettings
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.progress import Progress
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.learning.schedule import Schedule
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import Blocks, LearnedTask
from clom.nets import AdapterSettings, AlexNetSettings, NetSettings, ResNet18Settings
from clom.nets.layers import GatedLinear
from clom.storage.model_file import load_model, save_model
from clom.testing import check_method

TINY = AlexNetSettings(
    channels=(8, 8, 16), kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=32, dropout=(0.1, 0.1)
)
RESNET = ResNet18Settings(width=8)
NETS: list[NetSettings] = [TINY, RESNET]
nets = pytest.mark.parametrize("net", NETS, ids=lambda net: net.kind)

OPTIMISERS = {
    "sgd": OptimiserSettings(kind="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4),
    "adam": OptimiserSettings(kind="adam", lr=5e-3),
    "adamw": OptimiserSettings(kind="adamw", lr=5e-3, weight_decay=0.01),
    "lars": OptimiserSettings(kind="lars", lr=1.0, momentum=0.9, trust=0.01),
}


def quick(learning: dict[str, Any] | None = None, **changes: Any) -> ClomSettings:
    """Two epochs of two batches: enough to change all weights."""
    short: dict[str, Any] = {
        "plan": Plan(epochs=2, batch=12, schedule=Schedule(kind="constant")),
        "head": HeadSettings(views=1, iterations=10),
    }
    # A weak penalty: in such a small network a strong one closes a whole layer.
    attention = HardAttentionSettings(sparsity_first=0.1, sparsity_rest=0.1)
    parts: dict[str, Any] = {"attention": attention, "memory_per_class": 4, **changes}
    return ClomSettings(learning=ContrastiveSettings(**{**short, **(learning or {})}), **parts)


# Gradients of gates differ in size and need their own learning rates; too large ones close a whole layer at once.
GATE_RATES = {"sgd": 1e-3, "adam": 5e-2, "adamw": 5e-2, "lars": 1.0}


def optimised_by(name: str) -> dict[str, Any]:
    """Learner settings with this optimiser for both weights and gates."""
    optimiser = OPTIMISERS[name]
    return {"optimiser": optimiser, "gates_optimiser": optimiser.model_copy(update={"lr": GATE_RATES[name]})}


def all_blocks(method: Clom, stream: Stream) -> list[Blocks]:
    """The scores of all test sets of the stream, including those of tasks not learned yet."""
    return [method.blocks(test.pixels) for test in stream.tests]


def largest_change(before: Sequence[Blocks], after: Sequence[Blocks], n_tasks: int) -> float:
    changes = [
        (new[task] - old[task]).abs().max() for old, new in zip(before, after, strict=True) for task in range(n_tasks)
    ]
    return torch.stack(changes).max().item()


def shared(method: Clom) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in method.protection.net.shared_parameters()])


# ------------------------------------------------------------------------------------------------------ as a method


@nets
def test_is_a_method(net: NetSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: Clom(net, quick(), tiny_stream.image_shape, seed), tiny_stream)


@pytest.mark.parametrize(
    "settings",
    [
        quick(calibration="none"),
        quick(calibration="scale"),
        quick(memory_per_class=0),
        quick(memory_fit=CalibrationSettings(cross_task=0.03)),
        quick({"rotations": 1}),
        quick({"projection_layer": "shared"}),
        quick(attention=HardAttentionSettings(s_max=50.0, binary=False, sparsity_first=0.1)),
    ],
    ids=["-c", "scale", "empty memory", "cross-task", "w/o OOD", "shared projection", "soft"],
)
def test_variants_are_methods(settings: ClomSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: Clom(TINY, settings, tiny_stream.image_shape, seed), tiny_stream)


# ---------------------------------------------------------------------------------------------------- no forgetting


@nets
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_nothing_is_ever_forgotten(optimiser: str, net: NetSettings, tiny_stream: Stream) -> None:
    """The scores of all old tasks stay bit-identical while the shared weights keep changing."""
    method = Clom(net, quick(optimised_by(optimiser)), tiny_stream.image_shape)
    history: list[list[Blocks]] = []
    for number, task in enumerate(tiny_stream):
        before = shared(method)
        method.learn(task)
        moved = (shared(method) != before).float().mean().item()
        assert moved > 0.05, f"task {number} learned nothing: {moved:.0%} of the weights changed"
        history.append(all_blocks(method, tiny_stream))
    assert method.exact_memory
    for earlier in range(len(history)):
        for then, now in zip(history[earlier], history[-1], strict=True):
            for task_number in range(earlier + 1):
                assert torch.equal(then[task_number], now[task_number])
                assert then[task_number].std().item() > 0, "constant scores would prove nothing"


@nets
def test_nothing_is_forgotten_after_saving_and_resuming(net: NetSettings, tiny_stream: Stream, tmp_path: Path) -> None:
    method = Clom(net, quick(optimised_by("sgd")), tiny_stream.image_shape)
    for task in tiny_stream[:2]:
        method.learn(task)
    before = all_blocks(method, tiny_stream)
    save_model(tmp_path / "model", method)
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, Clom)
    for resumed in (copy.deepcopy(method), loaded):
        resumed.learn(tiny_stream[2])
        after = all_blocks(resumed, tiny_stream)
        assert largest_change(before, after, n_tasks=2) == 0
        assert not torch.equal(shared(resumed), shared(method))


@pytest.mark.parametrize("optimiser", ["sgd", "lars"])
def test_nothing_is_forgotten_with_a_shared_projection(optimiser: str, tiny_stream: Stream, tmp_path: Path) -> None:
    """Neither the scores nor the contrastive features of the first task change, also after saving and loading."""
    settings = quick({**optimised_by(optimiser), "projection_layer": "shared"})
    method = Clom(TINY, settings, tiny_stream.image_shape).learn(tiny_stream[0])

    @torch.no_grad()
    def hidden(method: Clom) -> Tensor:
        features = method.features(tiny_stream.tests[0].pixels, 0)
        assert isinstance(method.protection, HardAttention)
        return method.protection.projected(features, 0, 1.0)

    before, projected = all_blocks(method, tiny_stream), hidden(method)
    assert projected.std().item() > 0
    save_model(tmp_path / "model", method)
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, Clom)
    for resumed in (copy.deepcopy(method), loaded):
        layer = resumed.protection.get_submodule("projection")
        assert isinstance(layer, GatedLinear)
        weight = layer.weight.detach().clone()
        resumed.learn(tiny_stream[1])
        assert largest_change(before, all_blocks(resumed, tiny_stream), n_tasks=1) == 0
        # Gates are soft in training: at s = 700 those of closed units are as good as zero.
        torch.testing.assert_close(hidden(resumed), projected, rtol=0, atol=1e-6)
        assert 0.05 < (layer.weight != weight).float().mean().item() < 1


def test_forgetting_a_task_resets_its_part_of_the_shared_projection(tiny_stream: Stream) -> None:
    settings = quick({"projection_layer": "shared"})
    first = Clom(TINY, settings, tiny_stream.image_shape).learn(tiny_stream[0])
    both = copy.deepcopy(first).learn(tiny_stream[1])
    untouched = Clom(TINY, settings, tiny_stream.image_shape).protection.state_dict()["projection.weight"]
    learned = both.protection.state_dict()["projection.weight"].clone()
    both.forget(1)
    left = both.protection.state_dict()["projection.weight"]
    changed = learned != first.protection.state_dict()["projection.weight"]
    assert changed.any()
    assert torch.equal(left[changed], untouched[changed])


@nets
def test_a_broken_protection_would_be_noticed(
    net: NetSettings, tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_clamp(self: HardAttention) -> None:
        for embedding in self.mask_parameters(len(self.embeddings) - 1):
            embedding.data.clamp_(-6, 6)

    monkeypatch.setattr(HardAttention, "after_step", only_clamp)
    method = Clom(net, quick(optimised_by("adam")), tiny_stream.image_shape).learn(tiny_stream[0])
    before = all_blocks(method, tiny_stream)
    method.learn(tiny_stream[1])
    assert largest_change(before, all_blocks(method, tiny_stream), n_tasks=1) > 1e-2


def test_soft_protection_forgets_at_small_s_and_hardly_at_large_s(tiny_stream: Stream) -> None:
    changes = {}
    for s_max in (1.0, 700.0):
        attention = HardAttentionSettings(s_max=s_max, binary=False, sparsity_first=0.0, sparsity_rest=0.0)
        settings = quick({**optimised_by("adam"), "plan": Plan(epochs=5, batch=12)}, attention=attention)
        method = Clom(TINY, settings, tiny_stream.image_shape).learn(tiny_stream[0])
        assert not method.exact_memory, "otherwise the scorebook would cache scores that change"
        before = all_blocks(method, tiny_stream)
        size = torch.cat([blocks[0] for blocks in before]).std().item()
        method.learn(tiny_stream[1])
        changes[s_max] = largest_change(before, all_blocks(method, tiny_stream), n_tasks=1) / size
    assert changes[1.0] > 0.5
    assert changes[700.0] < 0.1 * changes[1.0]


def test_gates_are_zero_or_one_after_learning(tiny_stream: Stream) -> None:
    method = Clom(TINY, quick(), tiny_stream.image_shape).learn(tiny_stream[0]).learn(tiny_stream[1])
    assert isinstance(method.protection, HardAttention)
    seen: dict[str, list[Tensor]] = {}
    for task in range(2):
        for group, gate in method.protection.gates(task).items():
            assert set(gate.tolist()) <= {0.0, 1.0}
            seen.setdefault(group, []).append(gate)
    expected = {
        group: [round(first.mean().item(), 4), round(torch.maximum(first, second).mean().item(), 4)]
        for group, (first, second) in seen.items()
    }
    assert method.capacity() == expected


def test_only_the_new_task_and_free_weights_are_trained(tiny_stream: Stream) -> None:
    """After learning, no parameter requires a gradient; the next task still trains the shared weights."""
    method = Clom(TINY, quick(), tiny_stream.image_shape).learn(tiny_stream[0])
    assert not any(parameter.requires_grad for parameter in method.parameters())
    assert not method.training
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method.learn(tiny_stream[1])
    changed = {
        name
        for name, value in method.state_dict().items()
        if name in before and (value.shape != before[name].shape or not torch.equal(value, before[name]))
    }
    network = {f"protection.net.{name}" for name, _ in method.protection.net.named_parameters()}
    calibration = {"fitted.0", "fitted.1", "memory.pixels", "memory.labels", "memory.tasks"}
    assert changed == network | calibration


# ----------------------------------------------------------------------------------------------------------- scores


def test_rotation_ensemble_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks read: [1, 2], [3, 4], [5, 0], [7, 1]; 9 elsewhere.
    method = Clom(TINY.model_copy(update={"hidden": 8}), quick(), (1, 8, 8))
    method.open_task(LearnedTask("task", ("a", "b")))
    outputs = torch.full((4, 8), 9.0)
    for turn, own in enumerate([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0], [7.0, 1.0]]):
        outputs[turn, 2 * turn : 2 * turn + 2] = torch.tensor(own)
    monkeypatch.setattr(method.protection, "inference_features", lambda task: (lambda images: outputs, torch.arange(8)))
    method.heads[0] = nn.Identity()
    assert method.blocks(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))[0].tolist() == [[4.0, 1.75]]


@pytest.mark.parametrize("count", [1, 4])
def test_each_rotation_reads_its_block_of_the_head(count: int, tiny_stream: Stream) -> None:
    method = Clom(TINY, quick({"rotations": count}), tiny_stream.image_shape).learn(tiny_stream[0])
    pixels = tiny_stream.tests[0].pixels
    expected = torch.zeros(len(pixels), 2)
    with torch.no_grad():
        for turn in range(count):
            outputs = method.heads[0](method.protection.features(rotate(to_unit(pixels), turn), 0))
            expected += outputs[:, 2 * turn : 2 * turn + 2] / count
    torch.testing.assert_close(method.blocks(pixels)[0], expected, rtol=1e-4, atol=1e-5)


def test_flip_tta_averages_an_image_and_its_flip(tiny_stream: Stream) -> None:
    plain = Clom(TINY, quick(), tiny_stream.image_shape).learn(tiny_stream[0]).learn(tiny_stream[1])
    both = Clom(TINY, quick(flip_tta=True), tiny_stream.image_shape).learn(tiny_stream[0]).learn(tiny_stream[1])
    pixels = tiny_stream.tests[1].pixels
    expected = [(a + b) / 2 for a, b in zip(plain.blocks(pixels), plain.blocks(pixels.flip(3)), strict=True)]
    for block, flipped, average in zip(both.blocks(pixels), both.blocks(pixels.flip(3)), expected, strict=True):
        torch.testing.assert_close(block, average, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(block, flipped, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["flip_tta", "mirror"])
def test_flip_tta_is_refused_with_a_pretrained_network(name: str) -> None:
    settings = ClomSettings.model_validate({name: True})
    with pytest.raises(UserError, match="flip_tta"):
        Clom(AdapterSettings(weights="random", width=0.05, hidden=16), settings, (3, 32, 32))


def test_calibration_never_changes_a_til_prediction() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        blocks = [3 * torch.randn(40, n, generator=generator) for n in (2, 5, 3)]
        scales = torch.randn(3, generator=generator).exp()
        calibrated = Affine(scales, 5 * torch.randn(3, generator=generator))(blocks)
        for before, after in zip(blocks, calibrated, strict=True):
            assert torch.equal(before.argmax(1), after.argmax(1))
            assert not torch.equal(before, after)


def test_calibrations_by_preference(tiny_stream: Stream) -> None:
    found = {}
    for name in ("memory", "scale", "none"):
        method = Clom(TINY, quick(calibration=name), tiny_stream.image_shape).learn(tiny_stream[0])
        found[name] = (list(method.calibrations()), method.memory_bytes)
    assert found == {
        "memory": (["memory", "scale", "none"], 2 * 4 * 64),  # two classes, four samples, 8 x 8 bytes
        "scale": (["scale", "none"], 0),
        "none": (["none", "scale"], 0),
    }


# ------------------------------------------------------------------------------------------- failures and invalid input


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("phase", ["features", "head"])
def test_a_failed_task_leaves_no_trace(problem: type[BaseException], phase: str, tiny_stream: Stream) -> None:
    method, undisturbed = (Clom(TINY, quick(), tiny_stream.image_shape).learn(tiny_stream[0]) for _ in range(2))
    state = {name: value.clone() for name, value in method.state_dict().items()}

    def stop(progress: Progress) -> None:
        if (progress.phase, progress.done) == (phase, 3 if phase == "features" else 1):
            raise problem("stopped")

    with pytest.raises(problem, match="stopped"):
        method.learn(tiny_stream[1], TrainingContext(stop))
    assert len(method.tasks) == method.protection.n_tasks == len(method.heads) == 1
    assert list(method.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in method.state_dict().items())
    # It can still learn, with the same result as one that was never interrupted.
    after = all_blocks(method.learn(tiny_stream[1]), tiny_stream)
    assert largest_change(all_blocks(undisturbed.learn(tiny_stream[1]), tiny_stream), after, n_tasks=2) == 0


def test_divergence_is_reported_and_leaves_no_trace(tiny_stream: Stream) -> None:
    method = Clom(TINY, quick(), tiny_stream.image_shape).learn(tiny_stream[0])
    before = all_blocks(method, tiny_stream)
    wild = {"optimiser": OptimiserSettings(kind="sgd", lr=1e30)}
    method.learner = Clom(TINY, quick({**wild, "gates_optimiser": wild["optimiser"]}), tiny_stream.image_shape).learner
    with pytest.raises(UserError, match=r"task 2 diverged.*epoch \d of 2"):
        method.learn(tiny_stream[1])
    assert len(method.tasks) == 1
    assert largest_change(before, all_blocks(method, tiny_stream), n_tasks=1) == 0


def test_images_must_be_square() -> None:
    with pytest.raises(UserError, match="8 x 9"):
        Clom(RESNET, quick(), (3, 8, 9))


# --------------------------------------------------------------------------------------------------------- learning


def learn_unequal(digits: DataSet, per_class: int, epochs: int, seed: int = 0) -> Evaluation:
    """Digits in tasks of 3, 2 and 5 classes, which the method does not know in advance."""
    stream = split(digits, [3, 2, 5], train_per_class=per_class, test_per_class=20)
    learning = ContrastiveSettings(
        plan=Plan(epochs=epochs, batch=16, schedule=Schedule(warmup=1)),
        augmentation=Augmentation(flip=False, crop_area=(0.5, 1.0)),
        head=HeadSettings(views=2, iterations=50),
    )
    attention = HardAttentionSettings(sparsity_first=0.25, sparsity_rest=0.1)
    net = TINY.model_copy(update={"channels": (32, 32, 64), "hidden": 128, "dropout": (0.0, 0.0)})
    method = Clom(net, ClomSettings(attention=attention, learning=learning), stream.image_shape, seed)
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    assert [block.shape[1] for block in book.blocks(0)] == [3, 2, 5]
    return evaluate(book, method.calibrations())


def test_unequal_tasks_are_learned(digits: DataSet) -> None:
    # Measured on seeds 0 to 2: TIL .93 to .95, 1.0 and .85 to .88, CIL .55 to .65.
    result = learn_unequal(digits, per_class=40, epochs=10)
    first, second, third = result.til_by_task
    assert first > 0.85
    assert second > 0.95
    assert third > 0.78
    assert result.preferred.cil > 0.5


@pytest.mark.slow
def test_unequal_tasks_are_learned_well(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    # Measured on seeds 0 and 1: TIL 1.0, 1.0 and .97, CIL .91; untrained features: .97, .95 and .86, CIL .69.
    result = learn_unequal(digits, per_class=144, epochs=25)
    assert min(result.til_by_task) > 0.93
    assert result.preferred.cil > 0.85

    def only_clamp(self: HardAttention) -> None:
        for embedding in self.mask_parameters(len(self.embeddings) - 1):
            embedding.data.clamp_(-6, 6)

    monkeypatch.setattr(HardAttention, "after_step", only_clamp)
    broken = learn_unequal(digits, per_class=144, epochs=25)
    assert broken.til_by_task[0] < 0.85
    assert broken.preferred.cil < 0.7
