"""A method of your own: fine-tuning that is pulled back towards the weights it had after the last task.

    python examples/own_method.py
    clom run digits-5t --budget smoke --method examples/own_method.py:PullBack

A registered method has all that a built-in one has: runs, resuming, model files, tables, reports.
"""

from torch import Tensor
from torch.nn import functional as F

import clom
from clom.data.stream import Task
from clom.learning.context import TrainingContext
from clom.learning.loop import Plan
from clom.methods.families.shared import SharedNetwork, SharedSettings


class PullBackSettings(SharedSettings):
    """What can be set, here with --set strength=0.1; `optimiser` and `augmentation` are inherited."""

    plan: Plan = Plan(epochs=4)
    strength: float = 0.03


@clom.register_method("pull-back")
class PullBack(SharedNetwork):
    """Fine-tuning with a penalty on how far the weights move from those after the last task."""

    settings_type = PullBackSettings
    settings: PullBackSettings

    def _learn(self, task: Task, context: TrainingContext) -> None:
        pixels, labels = self.new_data(task)
        old = [weight.detach().clone() for weight in self.backbone.parameters()]
        strength = self.settings.strength if len(self.tasks) > 1 else 0.0

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            moved = sum(
                (now - before).square().sum() for now, before in zip(self.backbone.parameters(), old, strict=True)
            )
            return F.cross_entropy(self.logits(images), labels) + strength * moved

        # Batches, augmentation, the optimiser, progress and checkpoints are taken care of.
        self.train_on(pixels, labels, loss_of, list(self.parameters()), context)


def main() -> None:
    stream = clom.load_stream("digits-5t", budget="smoke")
    for strength in (0.0, 0.03):
        model = clom.make_method("pull-back", "digits-5t", budget="smoke", strength=strength)
        for task in stream:
            model.learn(task)
        result = clom.evaluate(model, stream.tests)
        print(f"strength {strength}: TIL {result.til:.1%}, CIL {result.preferred.cil:.1%}")


if __name__ == "__main__":
    main()
