"""A protected network with a mask and a head per task: the scores and features of each task.

Tested by tests/methods/families/test_masked.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.data.views import rotations, with_flipped
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.heads import DiscriminantHead
from clom.learning.learners.base import Learner
from clom.learning.protection.base import Protection
from clom.methods.families.base import Blocks, Method
from clom.methods.families.graphs import MaskedScores, TaskScores
from clom.methods.families.masked_settings import MaskedSettings
from clom.methods.families.task_network import TaskNetwork
from clom.nets import NetSettings
from clom.nets.gates import Gates
from clom.nets.networks.adapters import AdapterNet
from clom.ood.predictors.base import TaskOutputs
from clom.threads import Workers

_PIXELS_AT_ONCE = 32 * 64 * 64


class MaskedNetwork(Method):
    """One protected network, one head per task, scores averaged over rotations."""

    settings: MaskedSettings

    def __init__(
        self,
        net: NetSettings,
        settings: MaskedSettings,
        image_shape: Sequence[int],
        seed: int,
        protection: Protection,
        learner: Learner,
    ) -> None:
        super().__init__(net, settings, image_shape, seed)
        if settings.flip_tta and protection.net.has_frozen_backbone:
            raise UserError("flip_tta does not work with a pretrained network: set flip_tta to false.")
        self.protection = protection
        self.exact_memory = protection.exact
        self.learner = learner
        self._batch_size = 32 if protection.net.has_frozen_backbone else 256  # photos are large
        self.heads = nn.ModuleList()
        self._networks: dict[int, TaskNetwork] = {}  # a cache, filled on first use; never saved
        self._workers = Workers()
        self.register_load_state_dict_post_hook(_forget_networks)  # type: ignore[no-untyped-call]

    def learn(self, task: Task, context: TrainingContext | None = None) -> Self:
        self._networks = {}  # built from the weights again, so that they cannot hide a change of old tasks
        return super().learn(task, context)

    def networks_changed(self, first: int = 0) -> None:
        """Drop the cached networks for inference, those of task `first` and of all later ones."""
        self._networks = {task: network for task, network in self._networks.items() if task < first}

    def _apply(self, *args: Any, **options: Any) -> Self:
        before = self._placement
        moved: Self = super()._apply(*args, **options)  # type: ignore[no-untyped-call]
        if self._placement != before:
            self.networks_changed()
        return moved

    @property
    def _placement(self) -> tuple[torch.device, torch.dtype]:
        """Where and how the shared weights, and with them the cached networks, are stored."""
        weight = next(self.protection.parameters())
        return weight.device, weight.dtype

    def capacity(self) -> Mapping[str, Sequence[float]]:
        return self.protection.capacity()

    def unit_counts(self) -> Mapping[str, Sequence[int]]:
        return self.protection.unit_counts()

    def training_values(self) -> Mapping[str, float]:
        return self.protection.training_values()

    def _units_for_next_task(self) -> Mapping[str, int]:
        return self.protection.sizes_for_next_task()

    def n_parameters(self) -> int:
        """Shared weights plus the gates, normalisation and heads of all tasks; the projection g is discarded."""
        return self.protection.n_parameters() + sum(p.numel() for p in self.heads.parameters())

    @property
    def least_classes(self) -> int:
        return 1 if self.learner.rotations > 1 else 2  # a single class can only be contrasted with its rotations

    def gates(self, task: int) -> Gates:
        return self.protection.gates(task)

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        net, rotations, flip_tta = self.protection.net, self.learner.rotations, self.settings.flip_tta
        graphs = []
        for task in tasks:
            compact = self.protection.compact(task)
            if compact is None:
                raise UserError(f"{self.name} cannot be exported with soft gates (attention.binary: false).")
            graphs.append(TaskScores(*compact, self.heads[task], self.protection.n_features(task), rotations, flip_tta))
        backbone = net.backbone if isinstance(net, AdapterNet) else None
        return MaskedScores(graphs, backbone, rotations, flip_tta)

    @torch.no_grad()
    def features(self, pixels: Tensor, task: int) -> Tensor:
        """`h(x, k)` of the unrotated images."""
        batches = torch.split(pixels, 256)
        features = [self.protection.features(to_unit(batch.to(self.device)), task) for batch in batches]
        return torch.cat(features).cpu()

    @torch.no_grad()
    def linear_head(self, task: int) -> tuple[Tensor, Tensor]:
        """Weight `[classes, features]` and bias of the head's block for rotation 0, its first rows."""
        head, n_classes = self.heads[task], self.tasks[task].n_classes
        n_features, device = self.protection.n_features(task), self.device
        bias = head(torch.zeros(1, n_features, device=device))
        weight = head(torch.eye(n_features, device=device)) - bias  # works for masked heads as well
        return weight[:, :n_classes].T.cpu(), bias[0, :n_classes].cpu()

    def sub_network(self, task: int) -> dict[str, Tensor]:
        head = {f"head.{name}": value for name, value in self.heads[task].state_dict().items()}
        inference = {"rotations": torch.tensor(self.learner.rotations)}
        if self.settings.flip_tta:
            inference["mirror"] = torch.tensor(True)  # its former name: fingerprints of existing models depend on it
        return self.protection.sub_network(task) | head | inference

    def block(self, pixels: Tensor, task: int) -> Tensor:
        return self._blocks(pixels, [task])[0]

    def blocks(self, pixels: Tensor) -> Blocks:
        return self._blocks(pixels, range(len(self.tasks)))

    @torch.no_grad()
    def _blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        if not len(pixels):
            return [torch.empty(0, self.tasks[task].n_classes) for task in tasks]
        batches = [self._batch_blocks(batch, tasks) for batch in torch.split(pixels, self._batch_size)]
        return [_joined(of_task).cpu() for of_task in zip(*batches, strict=True)]

    def _images_at_once(self, device: torch.device) -> int:
        """On a CPU so few that their activations stay in its caches; larger batches gain nothing there."""
        if device.type != "cpu" or self.protection.net.has_frozen_backbone:
            return self._batch_size
        return min(32, max(1, _PIXELS_AT_ONCE // math.prod(self.image_shape[1:])))

    def _batch_blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        """The blocks of one batch: each task's network on a few images at a time, side by side."""
        found = self._side_by_side([self._network(task) for task in tasks], self._views_of_parts(pixels))
        return [_joined([scores for scores, _ in found[number :: len(tasks)]]) for number in range(len(tasks))]

    def _views_of_parts(self, pixels: Tensor) -> list[Tensor]:
        device = self.device
        parts = torch.split(pixels, self._images_at_once(device))
        if device.type != "cpu" or len(parts) == 1:
            return [self._views(part) for part in parts]
        return self._workers.run([partial(self._views, part) for part in parts])

    def _side_by_side(self, networks: Sequence[TaskNetwork], parts: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The outputs of all networks for the first part, then for the next.

        Each network runs on one thread. If tasks shared the threads, more tasks would leave fewer for each, and sums
        round differently on another number of threads; but old tasks must keep their bits. If the last networks would
        leave threads idle, their views are divided, provided that this keeps the bits as well.
        """
        pairs = [(network, views) for views in parts for network in networks]
        if parts[0].device.type != "cpu":
            return [network.outputs(views) for network, views in pairs]
        first, chunks = self._division(pairs)
        whole = [partial(network.outputs, views) for network, views in pairs[:first]]
        divided = [
            partial(network.features_of, chunk) for network, views in pairs[first:] for chunk in views.chunk(chunks)
        ]
        found: list[Any] = self._workers.run_on_one_thread_each([*whole, *divided])
        features = [torch.cat(found[at : at + chunks]) for at in range(first, len(found), chunks)]
        reading = [partial(network.read, own) for (network, _), own in zip(pairs[first:], features, strict=True)]
        return found[:first] + (self._workers.run_on_one_thread_each(reading) if reading else [])

    def _division(self, pairs: Sequence[tuple[TaskNetwork, Tensor]]) -> tuple[int, int]:
        """The number of networks that are not divided, and of the chunks that the others are divided into."""
        n_threads = torch.get_num_threads()
        left = len(pairs) % n_threads
        chunks = n_threads // left if left and len(pairs) < 4 * n_threads else 1  # later there is little to gain
        last = pairs[len(pairs) - left :]
        if chunks == 1 or any(len(views) % chunks for _, views in last):
            return len(pairs), 1
        is_exact = all(network.has_same_bits_in_chunks(views.shape, chunks) for network, views in last)
        return (len(pairs) - left, chunks) if is_exact else (len(pairs), 1)

    def task_logits(self, images: Tensor, task: int) -> Tensor:
        return self._network(task)(self._views(images))

    @torch.no_grad()
    def blocks_and_belonging(self, pixels: Tensor, tasks: Sequence[int] | None = None) -> tuple[Blocks, Tensor]:
        """With discriminant heads the in-distribution score is how well the span of a class explains the features."""
        chosen = range(len(self.tasks)) if tasks is None else tasks
        heads = {task: head for task in chosen if isinstance(head := self.heads[task], DiscriminantHead)}
        if not len(pixels) or not heads or len(heads) < len(chosen):
            return super().blocks_and_belonging(pixels, tasks)
        blocks, belonging = [], []
        for batch in torch.split(pixels, self._batch_size):
            views = self._views(batch)
            blocks.append([self._network(task)(views) for task in chosen])
            # From the masked network: model files record these scores, and the compact one rounds differently.
            similar = [
                head.similarity(self.protection.features(views, task), self.learner.rotations)
                for task, head in heads.items()
            ]
            belonging.append(torch.stack(similar, 1))
        return [torch.cat(of_task).cpu() for of_task in zip(*blocks, strict=True)], torch.cat(belonging).cpu()

    @property
    def _belongs_by_scores(self) -> bool:
        return not all(isinstance(head, DiscriminantHead) for head in self.heads)

    def _views(self, pixels: Tensor) -> Tensor:
        """All rotations as one batch, passed through the frozen backbone if there is one."""
        if pixels.ndim == 3:  # already in `stored_form`
            return pixels.to(self.device).transpose(0, 1).flatten(0, 1)
        images = to_unit(pixels.to(self.device))
        if self.settings.flip_tta:
            images = with_flipped(images)
        turned = rotations(images, self.learner.rotations).contiguous(memory_format=torch.channels_last)
        return self.protection.net.frozen_features(turned)

    def _network(self, task: int) -> TaskNetwork:
        if task not in self._networks:
            self._networks[task] = TaskNetwork(
                *self.protection.inference_features(task),
                self.heads[task],
                self.learner.rotations,
                self.settings.flip_tta,
            )
        return self._networks[task]

    @torch.no_grad()
    def outputs_of(self, pixels: Tensor, tasks: Sequence[int], with_features: bool) -> list[TaskOutputs]:
        """The outputs of some tasks. The features, `[images, rotations, d]`, come from the same pass as the blocks."""
        if with_features:
            return self._outputs(pixels, tasks)
        return [TaskOutputs(block) for block in self._blocks(pixels, tasks)]

    def outputs(self, pixels: Tensor, task: int, with_features: bool) -> TaskOutputs:
        return self.outputs_of(pixels, [task], with_features)[0]

    def all_outputs(self, pixels: Tensor, with_features: bool) -> list[TaskOutputs]:
        return self.outputs_of(pixels, range(len(self.tasks)), with_features)

    def _outputs(self, pixels: Tensor, tasks: Sequence[int]) -> list[TaskOutputs]:
        if not len(pixels):
            return [TaskOutputs(block) for block in self._blocks(pixels, tasks)]
        # As in `block`, so that both have the same bits.
        found = self._side_by_side([self._network(task) for task in tasks], self._views_of_parts(pixels))
        by_task = [zip(*found[number :: len(tasks)], strict=True) for number in range(len(tasks))]
        return [TaskOutputs(*(torch.cat(values).cpu() for values in of_task)) for of_task in by_task]

    @torch.no_grad()
    def stored_form(self, pixels: Tensor) -> Tensor:
        """Images as the memory stores them: with a frozen backbone its features, `[images, rotations, d]`, from which
        the pictures cannot be seen; otherwise the images themselves."""
        if not self.protection.net.has_frozen_backbone or pixels.ndim == 3:
            return pixels
        count = self.learner.rotations
        batches = [self._views(batch).view(count, len(batch), -1) for batch in torch.split(pixels, self._batch_size)]
        return torch.cat(batches, 1).transpose(0, 1).contiguous()


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _forget_networks(method: nn.Module, _: object) -> None:
    """Cached networks hold the weights from before loading."""
    assert isinstance(method, MaskedNetwork)
    method.networks_changed()
