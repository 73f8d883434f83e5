"""An OOD score of your own: how much an image's feature points the same way as the nearest class mean.

python examples/own_score.py
clom scores RUN --score examples/own_score.py:Cosine     # beside the built-in scores, on any finished run
"""

from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

import clom
from clom.evaluation.metrics import auc
from clom.ood.scores import MaxLogit
from clom.testing import check_score


@clom.register_score("cosine")
class Cosine(clom.Score):
    """The largest cosine between the feature and a class mean."""

    # What it reads besides the block. Methods without features are not scored by it, and `clom scores` says so.
    needs = ("features", "labels")

    def fit(self, own: clom.Outputs) -> Self:
        """Of the task's own training images; only here labels are known."""
        features, labels = own.need_features(), own.need_labels()
        means = [features[labels == label].mean(0) for label in torch.unique(labels)]
        self.directions_ = F.normalize(torch.stack(means))
        return self

    def __call__(self, outputs: clom.Outputs) -> Tensor:
        """One number per image; high = belongs to the task."""
        return (F.normalize(outputs.need_features()) @ self.directions_.T).amax(1)


def main() -> None:
    check_score(Cosine)  # one number per image, no undeclared needs, high = belongs, ...

    # Images of the first task against those of the second, which the first task's model has never seen.
    stream = clom.load_stream("digits-5t", budget="smoke")[:2]
    model = clom.make_method("hat", "digits-5t", budget="smoke").learn(stream[0])

    def outputs(images: clom.Images) -> clom.Outputs:
        return clom.Outputs(model.block(images.pixels, 0), model.features(images.pixels, 0), images.labels)

    for score in (Cosine(), MaxLogit()):
        score.fit(outputs(stream[0].train))
        own, other = (score(outputs(test).only(("features",))) for test in stream.tests)
        print(f"{type(score).__name__}: AUC {auc(own, other):.1%}")


if __name__ == "__main__":
    main()
