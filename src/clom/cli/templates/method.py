"""A continual learning method of my own.

Check it:  python my_method.py
Run it:    clom run digits-5t --budget smoke --method my_method.py:MyMethod
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

import clom
from clom.data.stream import Task
from clom.learning.context import TrainingContext
from clom.learning.loop import Plan
from clom.methods.families.shared import SharedNetwork, SharedSettings


class MyMethodSettings(SharedSettings):
    """What --set can change: --set label_smoothing=0.2 --set plan.epochs=20. Inherited: `optimiser`, `augmentation`."""

    plan: Plan = Plan(epochs=10)
    label_smoothing: float = 0.1


@clom.register_method("my-method")
class MyMethod(SharedNetwork):
    """Fine-tuning with label smoothing."""

    # One network and one head that grows with every task. For anything else derive from `clom.Method`, which asks for
    # three functions: _open_task (grow), _learn (train) and blocks (scores of images for each learned task).
    # Whatever is learned lives in parameters and buffers: then saving, loading and resuming work by themselves.

    settings_type = MyMethodSettings
    settings: MyMethodSettings
    keeps = "nothing"  # between tasks; shown by `clom list`

    def _learn(self, task: Task, context: TrainingContext) -> None:
        """Train on the newest task. The head has outputs for its classes already, in random state."""
        pixels, labels = self.new_data(task)  # labels count through all tasks learned so far

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            """Images are a batch of augmented views in [0, 1]: replace this by your own loss."""
            return F.cross_entropy(self.logits(images), labels, label_smoothing=self.settings.label_smoothing)

        # Batches, augmentation, optimiser, progress and checkpoints are taken care of.
        self.train_on(pixels, labels, loss_of, list(self.parameters()), context)


if __name__ == "__main__":
    from clom.testing import check_method

    check_method(lambda seed: clom.make_method("my-method", "digits-5t", "smoke", seed, plan__epochs=2))
    print("my-method keeps the contract of a method.")
