"""The estimator: scikit-learn's own checks, tasks by `partial_fit`, clear answers to what it cannot do."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import clom
from clom.estimator.arrays import layout_of
from clom.estimator.classifier import ClomClassifier
from clom.estimator.defaults import net_for, settings_for
from clom.learning.learners.contrastive import ContrastiveSettings
from clom.methods.baselines import FineTune
from clom.nets import AdapterSettings, AlexNetSettings, ResNet18Settings
from clom.testing.simulated_device import simulated_device
from nets.plain_networks import Residual

Array = NDArray[Any]
TINY_NET = {
    "kind": "alexnet",
    "channels": (16, 16, 32),
    "paddings": (1, 1, 0),
    "pools": (2, 2, 1),
    "hidden": 64,
    "dropout": (0, 0),
}
TINY_LEARNING = {
    "attention": {"sparsity_first": 0.0, "sparsity_rest": 0.0},
    "learning": {"plan": {"batch": 16}, "projection": 16, "head": {"views": 1, "iterations": 30}},
}


def tiny(**parameters: Any) -> ClomClassifier:
    """Learns in a fraction of a second, and learns something."""
    usual: dict[str, Any] = {"backbone": TINY_NET, "settings": TINY_LEARNING, "steps": 5, "random_state": 0}
    return ClomClassifier(**usual | parameters)


REFUSALS = {
    "check_fit_score_takes_y": "calls partial_fit with classes that fit has learned; a learned task is never changed",
}


@parametrize_with_checks([tiny()], expected_failed_checks=lambda estimator: REFUSALS)  # type: ignore[untyped-decorator]
def test_scikit_learns_checks(estimator: ClomClassifier, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def some() -> tuple[Array, Array]:
    """Forty of each of six digits."""
    pixels, labels = load_digits(return_X_y=True)
    rows = np.concatenate([np.flatnonzero(labels == digit)[:40] for digit in range(6)])
    return pixels[rows], labels[rows]


def of(data: tuple[Array, Array], *digits: int) -> tuple[Array, Array]:
    chosen = np.isin(data[1], digits)
    return data[0][chosen], data[1][chosen]


@pytest.fixture(scope="module")
def taught(some: tuple[Array, Array]) -> ClomClassifier:
    """Three tasks, later classes first."""
    return tiny().partial_fit(*of(some, 4, 5)).partial_fit(*of(some, 0, 1)).partial_fit(*of(some, 3))


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_each_call_is_a_task(taught: ClomClassifier, some: tuple[Array, Array]) -> None:
    assert [task.tolist() for task in taught.tasks_] == [[4, 5], [0, 1], [3]]
    assert taught.classes_.tolist() == [0, 1, 3, 4, 5]
    assert [task.class_names for task in taught.model_.tasks] == [("4", "5"), ("0", "1"), ("3",)]
    pixels, labels = of(some, 0, 1, 3, 4, 5)
    assert taught.predict_proba(pixels).shape == taught.decision_function(pixels).shape == (200, 5)
    assert taught.score(pixels, labels) > 0.5  # chance is 0.2


def test_columns_are_in_the_order_of_the_classes(taught: ClomClassifier, some: tuple[Array, Array]) -> None:
    pixels = some[0][:7]
    images = taught.layout_.images(taught.range_.bytes(pixels))
    calibrate = taught.model_.calibration
    four_five, zero_one, three = (block.numpy() for block in calibrate(taught.model_.blocks(images)))
    assert np.array_equal(taught.decision_function(pixels), np.hstack([zero_one, three, four_five]))
    assert np.array_equal(taught.predict(pixels), taught.classes_[taught.decision_function(pixels).argmax(1)])


def test_old_scores_stay_bit_identical(some: tuple[Array, Array]) -> None:
    first = tiny().partial_fit(*of(some, 4, 5))
    images = first.layout_.images(first.range_.bytes(some[0]))
    before = first.model_.block(images, 0)
    after = first.partial_fit(*of(some, 0, 1)).model_.block(images, 0)
    assert np.array_equal(before.numpy(), after.numpy())


def test_fit_begins_anew_and_partial_fit_goes_on(some: tuple[Array, Array]) -> None:
    estimator = tiny().fit(*of(some, 0, 1)).fit(*of(some, 2, 3)).partial_fit(*of(some, 4))
    assert [task.tolist() for task in estimator.tasks_] == [[2, 3], [4]]


def test_fit_can_learn_some_classes_at_a_time(some: tuple[Array, Array]) -> None:
    estimator = tiny(classes_per_task=2).fit(*of(some, 0, 1, 2, 4, 5))
    assert [task.tolist() for task in estimator.tasks_] == [[0, 1], [2, 4], [5]]
    by_hand = tiny().fit(*of(some, 0, 1))
    assert not np.array_equal(by_hand.classes_, estimator.classes_)


def test_learned_classes_are_refused_and_nothing_changes(taught: ClomClassifier, some: tuple[Array, Array]) -> None:
    before = taught.predict_proba(some[0])
    with pytest.raises(ValueError, match=r"The classes 0, 1 were learned before.*one call"):
        taught.partial_fit(*of(some, 0, 1))
    with pytest.raises(ValueError, match=r"The classes 1 were learned before.*Nothing was learned now.*isin"):
        taught.partial_fit(*of(some, 1, 2))
    assert np.array_equal(before, taught.predict_proba(some[0]))


def test_announced_classes_are_checked(some: tuple[Array, Array]) -> None:
    estimator = tiny()
    with pytest.raises(ValueError, match=r"y contains the classes 1, which are not among"):
        estimator.partial_fit(*of(some, 0, 1), classes=[0, 7])
    estimator.partial_fit(*of(some, 0, 1), classes=range(10))
    assert estimator.classes_.tolist() == [0, 1]


def test_labels_of_another_kind_are_refused(taught: ClomClassifier, some: tuple[Array, Array]) -> None:
    pixels, labels = of(some, 2)
    with pytest.raises(ValueError, match="labels such as"):
        taught.partial_fit(pixels, labels.astype(str))


def test_longer_names_later_are_not_cut(some: tuple[Array, Array]) -> None:
    estimator = tiny()
    for digits in ((0, 1), (2, 3)):
        pixels, labels = of(some, *digits)
        estimator.partial_fit(pixels, np.array(["a", "b", "a long name", "another long name"])[labels])
    assert list(estimator.classes_) == ["a", "a long name", "another long name", "b"]


def test_one_class_at_a_time(some: tuple[Array, Array]) -> None:
    estimator = tiny().partial_fit(*of(some, 3))
    assert estimator.predict(some[0]).tolist() == [3] * len(some[0])
    with pytest.raises(ValueError, match=r"hat cannot learn one class alone \(3\)"):
        tiny(method="hat", settings=None).partial_fit(*of(some, 3))


def test_a_failed_first_call_leaves_it_unfitted(some: tuple[Array, Array]) -> None:
    estimator = tiny(method="hat", settings=None)
    with pytest.raises(ValueError, match="one class alone"):
        estimator.partial_fit(*of(some, 3))
    assert not hasattr(estimator, "classes_") or not estimator.__sklearn_is_fitted__()
    assert estimator.partial_fit(*of(some, 0, 1)).classes_.tolist() == [0, 1]


# --- data ------------------------------------------------------------------------------------------------------------


def test_images_and_rows_are_the_same(some: tuple[Array, Array]) -> None:
    pixels, labels = of(some, 0, 1)
    answers = [
        tiny().fit(pixels.reshape(-1, *form), labels).predict_proba(pixels) for form in ((64,), (8, 8), (1, 8, 8))
    ]
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])


def test_the_range_of_the_first_data_counts(some: tuple[Array, Array]) -> None:
    pixels, labels = of(some, 0, 1)
    usual, moved = tiny().fit(pixels, labels), tiny().fit(1000 * pixels - 7, labels)
    assert (moved.range_.low, moved.range_.high) == (-7, 15993)
    assert np.array_equal(usual.predict_proba(pixels), moved.predict_proba(1000 * pixels - 7))
    with pytest.warns(UserWarning, match="lie outside 0 to 16"):
        usual.partial_fit(*(part * factor for part, factor in zip(of(some, 2, 3), (16, 1), strict=True)))


def test_other_forms_are_refused(taught: ClomClassifier) -> None:
    with pytest.raises(ValueError, match=r"\(1, 4, 16\) were given, but this estimator learned \(1, 8, 8\)"):
        taught.predict(np.zeros((2, 4, 16)))
    with pytest.raises(ValueError, match="features"):
        taught.predict(np.zeros((2, 63)))
    with pytest.raises(ValueError, match="image_shape"):
        tiny().fit(np.zeros((4, 5, 8, 8)), [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("method", "clim", "clim"),
        ("steps", 0, "steps"),
        ("steps", 1.5, "steps"),
        ("classes_per_task", 0, "classes_per_task"),
        ("validation", 1.0, "validation"),
        ("false_rejection", -0.1, "false_rejection"),
        ("backbone", "vgg", "vgg"),
        ("backbone", {"kind": "vgg"}, "backbone needs a kind"),
        ("backbone", {"kind": "alexnet", "hiden": 3}, r"1 validation error for AlexNetSettings\nhiden"),
        ("settings", {"learnin": {}}, "learnin"),
    ],
)
def test_wrong_parameters_are_refused_when_data_arrive(
    name: str, value: Any, named: str, some: tuple[Array, Array]
) -> None:
    estimator = tiny(**{name: value})
    with pytest.raises(ValueError, match=named):
        estimator.fit(*of(some, 0, 1))


# --- unknown images --------------------------------------------------------------------------------------------------


def test_the_task_of_the_best_class_judges(taught: ClomClassifier, some: tuple[Array, Array]) -> None:
    pixels = some[0]
    images = taught.layout_.images(taught.range_.bytes(pixels))
    raw = np.stack([block.amax(1).numpy() for block in taught.model_.blocks(images)], 1)
    task_of = {label: number for number, task in enumerate(taught.tasks_) for label in task.tolist()}
    best = [task_of[label] for label in taught.predict(pixels).tolist()]
    expected = [raw[row, task] >= taught.thresholds_[task] for row, task in enumerate(best)]
    assert taught.belongs(pixels).tolist() == expected
    assert 0.7 < np.mean(taught.belongs(of(some, 0, 1, 3, 4, 5)[0])) <= 1


def test_no_threshold_without_exact_memory(some: tuple[Array, Array]) -> None:
    estimator = tiny(method="finetune", settings=None).fit(*of(some, 0, 1))
    with pytest.raises(ValueError, match="finetune changes the scores of earlier tasks"):
        estimator.belongs(some[0])


# --- manners ---------------------------------------------------------------------------------------------------------


def test_a_pickled_estimator_answers_and_learns_on(taught: ClomClassifier, some: tuple[Array, Array]) -> None:
    again = pickle.loads(pickle.dumps(taught))
    assert np.array_equal(again.predict_proba(some[0]), taught.predict_proba(some[0]))
    assert np.array_equal(again.belongs(some[0]), taught.belongs(some[0]))
    copies = [pickle.loads(pickle.dumps(taught)).partial_fit(*of(some, 2)) for _ in range(2)]
    assert np.array_equal(copies[0].predict_proba(some[0]), copies[1].predict_proba(some[0]))
    assert len(taught.tasks_) == 3


def test_a_clone_has_learned_nothing(taught: ClomClassifier) -> None:
    fresh = clone(taught)
    assert fresh.get_params() == taught.get_params()
    assert not hasattr(fresh, "model_")


def test_in_a_pipeline_and_cross_validated(some: tuple[Array, Array]) -> None:
    pipeline = make_pipeline(StandardScaler(), tiny(steps=30))
    scores = cross_val_score(pipeline, *of(some, 0, 1, 2), cv=2, error_score="raise")
    assert scores.mean() > 0.8


@pytest.mark.parametrize("method", ["hat", "supsup", "clom-no-ood", "finetune", "icarl", "derpp"])
def test_other_methods(method: str, some: tuple[Array, Array]) -> None:
    estimator = tiny(method=method, settings=None, steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two steps leave some with closed layers
        estimator.partial_fit(*of(some, 0, 1)).partial_fit(*of(some, 2, 3))
    assert np.allclose(estimator.predict_proba(some[0]).sum(1), 1, atol=1e-6)
    assert set(estimator.predict(some[0])) <= {0, 1, 2, 3}


@pytest.mark.parametrize("method", ["clom", "my-method"])
@pytest.mark.parametrize("backbone", ["my-residual", {"kind": "my-residual", "width": 4}])
def test_methods_and_networks_of_ones_own(method: str, backbone: Any, some: tuple[Array, Array]) -> None:
    clom.register_network("my-residual")(Residual)
    clom.register_method("my-method")(type("MyMethod", (FineTune,), {}))
    estimator = tiny(method=method, backbone=backbone, settings=None, steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two steps leave some with closed layers
        estimator.partial_fit(*of(some, 0, 1)).partial_fit(*of(some, 2, 3))
    assert estimator.model_.net_settings.kind == "my-residual"
    assert estimator.model_.name == method
    if method == "clom":  # a class made in a test cannot be pickled
        again = pickle.loads(pickle.dumps(estimator))
        assert np.array_equal(again.predict_proba(some[0]), estimator.predict_proba(some[0]))


def test_exported_by_the_package() -> None:
    assert clom.ClomClassifier is ClomClassifier
    assert "ClomClassifier" in clom.__all__


# --- defaults --------------------------------------------------------------------------------------------------------


def test_networks_by_the_form_of_the_images() -> None:
    digits, photos = layout_of(64, None), layout_of(3072, None)
    assert isinstance(net_for("clom", "auto", digits), AlexNetSettings)
    assert isinstance(net_for("clom", "auto", layout_of(784, None)), AlexNetSettings)
    assert isinstance(net_for("clom", "auto", photos), ResNet18Settings)
    assert isinstance(net_for("clom", "alexnet", photos), AlexNetSettings)
    assert isinstance(net_for("clom", "resnet18", digits), ResNet18Settings)
    assert isinstance(net_for("ncm", "auto", photos), AdapterSettings)


@pytest.mark.parametrize(("n_images", "epochs", "sweep"), [(320, 40, 10), (32, 400, 8), (5, 400, 8), (64000, 1, 2000)])
def test_steps_become_epochs(n_images: int, epochs: int, sweep: int) -> None:
    """400 steps in batches of 32: ten batches are an epoch of 320 images. An epoch is never cut."""
    learning = getattr(settings_for("clom", layout_of(64, None), n_images, 400), "learning")  # noqa: B009
    assert isinstance(learning, ContrastiveSettings)
    assert (learning.plan.epochs, learning.sweep) == (epochs, sweep)


def test_given_settings_count_before_steps() -> None:
    given = {"learning": {"plan": {"epochs": 3}, "augmentation": {"colour": False}}}
    learning: Any = getattr(settings_for("clom-no-ood", layout_of(64, None), 320, 400, given), "learning")  # noqa: B009
    assert (learning.plan.epochs, learning.rotations) == (3, 1)
    assert (learning.augmentation.colour, learning.augmentation.flip, learning.augmentation.crop) == (
        False,
        False,
        True,
    )


def test_the_device_is_a_parameter() -> None:
    """On a simulated accelerator the estimator learns and answers as on the CPU."""
    rows, labels = load_digits(return_X_y=True)
    few = np.isin(labels, (0, 1)) & (np.arange(len(labels)) < 200)
    on_cpu = ClomClassifier(steps=3, random_state=0, device="cpu").fit(rows[few], labels[few])
    on_device = ClomClassifier(steps=3, random_state=0).fit(rows[few], labels[few])
    on_device.model_.to(simulated_device())
    assert np.array_equal(on_cpu.predict_proba(rows[:20]), on_device.predict_proba(rows[:20]))
    with pytest.raises(ValueError, match="There is no device 'gpu'"):
        ClomClassifier(device="gpu").fit(rows[few], labels[few])
