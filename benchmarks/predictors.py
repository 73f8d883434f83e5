"""What CLOM+'s task predictor costs when answering, compared with the paper's calibration on the same model."""

from __future__ import annotations

import copy
from functools import partial

import torch

from benchmarks.measure import Figure, figure, interleaved, ratios
from benchmarks.models import random_pixels, subject, untrained
from clom.methods.clom import ClomSettings

TASKS = 5
SAMPLES = 20
LIMIT = 1.15
PREDICTOR = "fusion"  # of CLOM+'s recipes


def figures(quick: bool = False) -> list[Figure]:
    found: list[Figure] = []
    for net, images, rounds in (("MNIST net", 64, 15), ("ResNet-18, width 16", 64, 15)):
        what = subject(net, quick)
        plain = untrained(what, TASKS, settings=ClomSettings())
        labels = torch.arange(what.classes).repeat_interleave(2 if quick else SAMPLES)
        for task in range(TASKS):
            plain.memory.add(task, random_pixels(what, len(labels)), labels)
        predicting = copy.deepcopy(plain)
        plain.use_predictor(None)
        predicting.use_predictor(PREDICTOR)
        pixels = random_pixels(what, 2 if quick else images)
        times = interleaved(
            {
                "calibration": partial(plain.comparable_and_belonging, pixels),
                "predictor": partial(predicting.comparable_and_belonging, pixels),
            },
            2 if quick else rounds,
            warmup=2,
        )
        group = f"answering, {net}, {TASKS} tasks, {len(pixels)} images, {SAMPLES} samples a class"
        cost = ratios(times["predictor"], times["calibration"])
        kept = sum(value.nbytes for value in predicting.prediction.state_dict().values()) / TASKS / 1000
        found += [
            figure(group, f"time with {PREDICTOR} / with calibration", cost, "x", at_most=LIMIT),
            figure(group, f"{PREDICTOR} keeps per task", [kept], "kB"),
        ]
    return found
