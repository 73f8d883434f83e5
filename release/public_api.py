"""Uses the public API as another program would. `make dist` runs it, and checks it with mypy --strict, against an
installed wheel; tests/release/test_public_api.py runs it in the checkout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

import clom


def use_methods(folder: Path) -> float:
    """Learn two tasks, save the model, and load it again."""
    stream: clom.Stream = clom.load_stream("digits-5t", "smoke")
    model: clom.Method = clom.make_method("clom", "digits-5t", "smoke", seed=1, learning__plan__epochs=1)
    for task in stream[:2]:
        model.learn(task)
    result = clom.evaluate(model, stream.tests)
    path = folder / "digits.safetensors"
    clom.save_model(path, model)
    images: clom.Images = stream.tests[0]
    before, after = model.blocks(images.pixels), clom.load_model(path).blocks(images.pixels)
    assert all(bool((one == two).all()) for one, two in zip(before, after, strict=True))
    path.unlink()
    return result.til


def use_estimator() -> float:
    """Learn four digits, two at a time, with scikit-learn's interface."""
    classifier = clom.ClomClassifier(steps=5, random_state=0)
    stream = clom.load_stream("digits-5t", "smoke")
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for number, task in enumerate(stream[:2]):
        classifier = classifier.partial_fit(task.train.pixels.numpy(), task.train.labels.numpy() + 2 * number)
        images.append(stream.tests[number].pixels.numpy())
        labels.append(stream.tests[number].labels.numpy() + 2 * number)
    assert classifier.classes_.tolist() == [0, 1, 2, 3]
    return float(classifier.score(np.concatenate(images), np.concatenate(labels)))


@clom.register_score("largest-logit")
class LargestLogit(clom.Score):
    """A score of one's own: high for images that belong to the task."""

    def __call__(self, outputs: clom.Outputs) -> Tensor:
        return outputs.block.amax(1)


def main() -> None:
    assert {"make_method", "ClomClassifier", "__version__"} <= set(dir(clom))
    print(f"clom {clom.__version__}: TIL {use_methods(Path()):.2f}, estimator {use_estimator():.2f}")


if __name__ == "__main__":
    main()
