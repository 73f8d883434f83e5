"""Continual learning as a scikit-learn classifier: each `partial_fit` with new classes is a task.

| | behaviour |
|---|---|
| `fit` | starts from scratch; learns all classes as one task, or `classes_per_task` at a time |
| `partial_fit` | learns the classes of `y` as a new task, without forgetting and without the earlier data |
| a known class | `ValueError`: a learned task never changes, so pass all images of a class in one call |
| X | `[n, features]`, `[n, height, width]` or `[n, channels, height, width]`, numbers of any range |
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from clom.data.images import Images
from clom.data.stratified import hold_out, split_images
from clom.data.stream import Task
from clom.estimator.arrays import Range, form_of, layout_of
from clom.estimator.checks import check_labels, check_parameters
from clom.estimator.defaults import net_for, settings_for, with_settings
from clom.learning.loop import generator
from clom.machine import choose_device
from clom.methods.families.base import Method, move, strongest
from clom.methods.registry import method_class
from clom.ood.rejection import FALSE_REJECTION, HeldOutScores
from clom.settings import Settings
from clom.storage.model_file import load_model, save_model

Array = NDArray[Any]
_TOLERATED_OUTSIDE = 0.05


class ClomClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An image classifier that learns new classes without forgetting.

    Parameters
    ----------
    method
        A name of `clom list methods`.
    image_shape
        `(height, width)` or `(channels, height, width)` of the images whose pixels are the features. By default a
        square number of features is a grey image, three times a square a colour image, anything else a vector.
    backbone
        auto, alexnet, resnet18, efficientnet-lite0 (pretrained), or a mapping with the settings of a network.
    steps
        Training steps per task, independent of the number of images.
    classes_per_task
        How many classes `fit` learns at a time, in sorted order; by default all at once.
    validation
        Share of each class's images (at least one) that calibrates and sets thresholds instead of training.
    false_rejection
        Share of a task's own images that `belongs` may call unknown.
    settings
        Further settings of the method, for example `{"learning": {"plan": {"batch": 16}}}`.
    random_state
        Decides everything random: a number for the same result every time.
    device
        Where to compute: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`.

    Attributes
    ----------
    classes_ : all classes learned so far, sorted; the columns of every answer.
    tasks_ : the classes of each task, in the order in which they were learned.
    model_ : the method itself, as `clom.make_method` would have made it; `clom.save_model` writes it to a file.
    range_ : the values that became black and white: the smallest and largest of the first data, or 0 and 255 of bytes.
    thresholds_ : of each task, the score below which `belongs` says no.
    """

    def __init__(
        self,
        method: str = "clom",
        *,
        image_shape: Sequence[int] | None = None,
        backbone: str | Mapping[str, Any] = "auto",
        steps: int = 400,
        classes_per_task: int | None = None,
        validation: float = 0.1,
        false_rejection: float = FALSE_REJECTION,
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
    ) -> None:
        self.method = method
        self.image_shape = image_shape
        self.backbone = backbone
        self.steps = steps
        self.classes_per_task = classes_per_task
        self.validation = validation
        self.false_rejection = false_rejection
        self.settings = settings
        self.random_state = random_state
        self.device = device

    # --- learning ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the classes of `y` from scratch."""
        check_parameters(self)
        rows, labels = self._rows_and_labels(X, y, first=True)
        classes = np.unique(labels)
        size = self.classes_per_task or len(classes)
        self._begin(rows)
        for start in range(0, len(classes), size):
            mine = np.isin(labels, classes[start : start + size])
            self._learn(rows[mine], labels[mine])
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the classes of `y`, all of them new, as one more task. On failure the estimator is unchanged.

        `classes` is optional, unlike in scikit-learn's own estimators; if given, it must contain every label.
        """
        check_parameters(self)
        first = not self.__sklearn_is_fitted__()
        rows, labels = self._rows_and_labels(X, y, first=first)
        check_labels(labels, None if first else self.classes_, classes)
        if first:
            self._begin(rows)
        elif self.range_.share_outside(rows) > _TOLERATED_OUTSIDE:
            warnings.warn(
                f"Of the new values {100 * self.range_.share_outside(rows):.0f}% lie outside {self.range_.low:g} to "
                f"{self.range_.high:g}, the range of the first data, and are clipped. Scale all data in the same way.",
                stacklevel=2,
            )
        self._learn(rows, labels)
        return self

    def _begin(self, rows: Array) -> None:
        """Fix what depends on the first data set: value range, image layout, network."""
        self.range_ = Range.of(rows)
        self.tasks_: list[Array] = []
        self.classes_ = np.empty(0)
        self.thresholds_ = np.empty(0)
        layout = self.layout_
        maker = method_class(self.method)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        channels = layout.shape[0]
        net = net_for(self.method, self.backbone, layout)
        self.model_: Method = maker(net, self._settings(len(rows)), (channels, layout.side, layout.side), seed)
        move(self.model_, choose_device(self.device))

    def _learn(self, rows: Array, labels: Array) -> None:
        classes, places = np.unique(labels, return_inverse=True)
        if len(classes) < self.model_.least_classes:
            raise ValueError(
                f"{self.method} cannot learn one class alone ({classes[0]}): its task needs at least two."
                " Pass two or more classes at once, or use a method that can, such as clom."
            )
        everything = Images(self.layout_.images(self.range_.bytes(rows)), torch.from_numpy(places.astype(np.int64)))
        train, held = self._split(everything, len(classes))
        task = Task(f"task {len(self.tasks_) + 1}", tuple(str(label) for label in classes), train, held)
        model = with_settings(self.model_, self._settings(len(train)))
        self.model_ = model.learn(task)
        self.tasks_ = [*self.tasks_, classes]
        self.classes_ = np.unique(np.concatenate(self.tasks_))
        own = self.model_.blocks_and_belonging(held.pixels, [len(self.tasks_) - 1])[1][:, 0]
        self.thresholds_ = np.append(self.thresholds_, HeldOutScores.of(own.tolist()).threshold(self.false_rejection))

    def _split(self, images: Images, n_classes: int) -> tuple[Images, Images]:
        """Training and validation images; a class whose images are all held out is also trained on them."""
        randomness = generator(self.model_.seed, "validation", len(self.tasks_))
        drawn = hold_out(images.labels, n_classes, lambda n: max(1, round(self.validation * n)), randomness)
        return split_images(images, [(train if len(train) else held, held) for train, held in drawn])

    def _settings(self, n_images: int) -> Settings:
        return settings_for(self.method, self.layout_, n_images, self.steps, self.settings)

    # --- prediction --------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Array:
        """The most likely of all learned classes."""
        scores = self._scores(X)
        best: Array = self.classes_[scores.argmax(1)]
        return best

    def decision_function(self, X: Any) -> Array:
        """Calibrated scores `[n, classes]`; for two classes their difference `[n]`, as in scikit-learn."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """The softmax of the calibrated scores over all classes."""
        probabilities: Array = torch.from_numpy(self._scores(X)).double().softmax(1).float().numpy()
        return probabilities

    def belongs(self, X: Any) -> Array:
        """Whether an image is in-distribution for the task of its predicted class, at the rate `false_rejection`."""
        images = self._images(X)
        if not self.model_.exact_memory:
            raise ValueError(f"{self.method} changes the scores of earlier tasks, so no threshold stays valid.")
        compared, belonging = self.model_.comparable_and_belonging(images)
        best = strongest(compared, len(images)).argmax(1, keepdim=True)
        own = belonging.gather(1, best)[:, 0]
        belongs: Array = own.double().numpy() >= self.thresholds_[best[:, 0].numpy()]
        return belongs

    def _scores(self, X: Any) -> Array:
        """`[n, classes]` in float32; columns in the order of `classes_`."""
        images = self._images(X)
        scores = torch.cat(self.model_.comparable_blocks(images), 1).float().numpy()
        return scores[:, np.argsort(np.concatenate(self.tasks_), kind="stable")]

    def _images(self, X: Any) -> Tensor:
        check_is_fitted(self)
        rows = validate_data(self, self._flat(X), reset=False)
        return self.layout_.images(self.range_.bytes(rows))

    # --- data --------------------------------------------------------------------------------------------------------

    def _rows_and_labels(self, X: Any, y: Any, first: bool) -> tuple[Array, Array]:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        rows, labels = validate_data(self, self._flat(X, first), y, reset=first, ensure_min_samples=2)
        check_classification_targets(labels)
        if first:
            self.layout_ = layout_of(rows.shape[1], self.image_shape or form_of(X))
        return rows, column_or_1d(labels)

    def _flat(self, X: Any, first: bool = False) -> Any:
        """Images as flat rows; later images must have the shape of the first."""
        form = form_of(X)
        if form is None:
            return X
        if not first and form != self.layout_.shape:
            raise ValueError(f"Images of shape {form} were given, but this estimator learned {self.layout_.shape}.")
        return np.reshape(X, (len(X), -1))

    # --- protocols ---------------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return len(getattr(self, "tasks_", ())) > 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the model as the content of a model file, without cached sub-networks."""
        state = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = _file_content(state["model_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state:
            self.model_ = _from_file_content(state["model_"])


def _file_content(method: Method) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save_model(path, method)
        return path.read_bytes()


def _from_file_content(content: bytes) -> Method:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(content)
        return load_model(path)
