"""A task's fingerprint: a hash of all values that determine its predictions.

It hashes stored values instead of predictions, so it is the same on every machine, although machines may round
differently. `probes` are images for comparing the predictions themselves on one machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from clom.learning.loop import generator
from clom.methods.families.base import Method


def fingerprint(method: Method, task: int) -> str:
    """SHA-256 of the task's sub-network (names, types, shapes and bits of its tensors) and class names."""
    digest = hashlib.sha256()
    about = (method.name, method.image_shape, method.tasks[task].class_names)
    digest.update(repr(about).encode())
    for name, value in sorted(method.sub_network(task).items()):
        plain = value.detach().cpu().contiguous()
        digest.update(repr((name, str(plain.dtype), tuple(plain.shape))).encode())
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()


def probes(image_shape: Sequence[int], count: int = 16) -> Tensor:
    """Generated images, identical on every machine: half are fine noise, half coarse squares."""
    channels, height, width = image_shape
    randomness = generator(0, "probes")
    fine = torch.randint(0, 256, (count // 2, channels, height, width), generator=randomness)
    coarse = torch.randint(0, 256, (count - count // 2, channels, 4, 4), generator=randomness)
    rows, columns = (torch.arange(side) * 4 // side for side in (height, width))
    return torch.cat([fine, coarse[:, :, rows][:, :, :, columns]]).to(torch.uint8)
