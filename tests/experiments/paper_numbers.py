"""The published numbers of every system on every experiment of the paper, by the dotted names of settings.

They are typed from the publications and from the code that the paper's authors name, with the source beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

EXPERIMENTS = ("mnist-5t", "cifar10-5t", "cifar100-10t", "cifar100-20t", "tinyimagenet-5t", "tinyimagenet-10t")
Numbers = dict[str, Any]


class Each(tuple[Any, ...]):
    """A value for each of the six experiments."""


ABSENT = object()
"""A setting that an experiment does not have, because another network has other settings."""


def mnist_or(mnist: Any, others: Any) -> Each:
    return Each([mnist, *[others] * 5])


def by_classes(ten: Any, more: Any) -> Each:
    """For ten classes (MNIST, CIFAR-10), and for a hundred or two hundred."""
    return Each([ten, ten, *[more] * 4])


def per_data(mnist: Any, cifar10: Any, cifar100: Any, tiny: Any) -> Each:
    return Each([mnist, cifar10, cifar100, cifar100, tiny, tiny])


def under(group: str, numbers: Mapping[str, Any]) -> Numbers:
    return {f"{group}.{name}": value for name, value in numbers.items()}


def plan(epochs: Any, batch: Any, kind: Any = "constant", **schedule: Any) -> Numbers:
    by_epoch = {} if kind == "constant" else {"every": "epoch"}
    return {"epochs": epochs, "batch": batch, **under("schedule", {"kind": kind, **by_epoch, **schedule})}


def sgd(lr: Any, momentum: float = 0.0, weight_decay: float = 0.0) -> Numbers:
    return {"kind": "sgd", "lr": lr, "momentum": momentum, "weight_decay": weight_decay}


def adam(lr: float, weight_decay: float = 0.0) -> Numbers:
    return {"kind": "adam", "lr": lr, "weight_decay": weight_decay}


def shifted(flip: Any, shift: Any) -> Numbers:
    """The padded random crop and the flip of classifiers; no colours, no Inception crop."""
    return {"flip": flip, "shift": shift, "colour": False, "crop": False}


# The paper, "Training Details" and "Network Parameter Sizes": 10% for validation, classes in consecutive order.
CLASSES_PER_TASK = Each((2, 2, 10, 5, 40, 20))
ALEXNET = {"kind": "alexnet", "channels": (64, 128, 256), "kernels": (3, 3, 2), "hidden": 800, "dropout": (0.2, 0.5)}
NETWORK = Each([ALEXNET, {"kind": "resnet18", "width": 64}, *[{"kind": "resnet18", "width": 128}] * 4])
# "20 random samples per class from the validation set", 10 for Tiny-ImageNet; 2000 in all as in iCaRL's paper.
SAMPLES_PER_CLASS = Each((20, 20, 20, 20, 10, 10))
MEMORY = by_classes(200, 2000)

# Appendix "Hyper-parameters": 160 iterations, learning rate 0.01, batch 32; the momentum is that of the authors' code.
CALIBRATED = {
    "calibration": "memory",
    "memory_per_class": SAMPLES_PER_CLASS,
    **under("memory_fit", {"solver": "paper", "iterations": 160, "lr": 0.01, "batch": 32, "momentum": 0.8}),
}
# "Training Details": LARS, 0.1 to 1.0 over 10 epochs, then cosine; the classifier by SGD, x0.1 at 60, 75 and 90.
WARM_COSINE = {"kind": "cosine", "warmup": 10, "start": 0.1, "horizon": 700}
DROPS = {"kind": "steps", "steps": [60, 75, 90], "drop": 0.1}


def contrastive(batch: Any, weight_decay: float) -> Numbers:
    lars = {"kind": "lars", "lr": 1.0, "momentum": 0.9, "trust": 1e-3, "weight_decay": weight_decay}
    return {
        **under("plan", plan(700, batch, **WARM_COSINE)),
        **under("optimiser", lars),
        **under("gates_optimiser", lars),
        "rotations": 4,
        "temperature": 0.07,
        "projection": 128,
        "projection_layer": "task",
        "order": "paper",
        "cross_entropy": 0.0,
        **under("augmentation", {"flip": True, "colour": True, "crop": True, "crop_area": [0.08, 1.0], "shift": 0}),
        "head.views": 2,  # Eq. 4 is over the 8N views of a batch
        **under("head.plan", plan(100, batch, **DROPS)),
        **under("head.optimiser", sgd(0.1, weight_decay=weight_decay)),
    }


# Appendix "Hyper-parameters": lambda_1, lambda_t and the batch of each experiment, s = 700, tau = 0.07, crop from 0.08.
CLOM = {
    **CALIBRATED,
    "attention.s_max": 700,
    "attention.sparsity_first": Each((0.25, 1.0, 1.5, 3.5, 0.75, 1.0)),
    "attention.sparsity_rest": Each((0.1, 0.75, 1.0, 2.5, 0.75, 0.75)),
    "attention.binary": True,
    **under("learning", contrastive(batch=mnist_or(256, 128), weight_decay=0.0)),
    "learning.projection_layer": "shared",
}

# HAT (joansj/hat), training loop: SGD without momentum or decay, up to 200 epochs, no augmentation; lr / 3 after 5 bad
# epochs, stop below 1e-4, restore the best.
HAT = {
    **CALIBRATED,
    "attention.s_max": 400,
    "attention.sparsity_first": 0.75,
    "attention.sparsity_rest": 0.75,
    "attention.binary": True,
    **under("learning.plan", plan(200, 64)),
    **under("learning.plan.plateau", {"monitor": "loss", "patience": 5, "drop": 1 / 3, "smallest_lr": 1e-4}),
    **under("learning.plan.plateau", {"stop": True, "restore_best": True}),
    **under("learning.optimiser", sgd(0.05)),
    **under("learning.gates_optimiser", sgd(0.05)),
    **under("learning.augmentation", shifted(flip=False, shift=0)),
}

# LwF.R (Liu et al.'s code). Its authors have settings for CIFAR-100 alone.
LWF_R = {
    **under("plan", plan(160, 128, "steps", steps=[80, 120], drop=0.1)),
    **under("optimiser", sgd(0.1, 0.9, 5e-4)),
    **under("augmentation", shifted(flip=mnist_or(False, True), shift=mnist_or(2, 4))),  # on MNIST our choice
    **under("memory", {"size": MEMORY, "mode": "total", "rounding": "ceil"}),
    "temperature": 2.0,
    "beta": 0.25,
    "herding": "rank",
    "final_relu": False,
}
# iCaRL, in the variant of Liu et al.: the same trainer; means over exemplars and horizontal flips, except for digits.
ICARL = {**LWF_R, "variant": "liu", "flip_means": mnist_or(False, True)}

TABLE: dict[str, Numbers] = {
    "clom": CLOM,
    "clom-no-calibration": {**CLOM, "calibration": "none"},
    "clom-no-ood": {**CLOM, "learning.rotations": 1},
    "hat": HAT,
    "clom-odin": {**HAT, "temperature": 1000.0, "eps": 0.0014},  # the values of ODIN's paper
    # SupSup (RAIVNLab/supsup); the launcher's 250 epochs, random crops of 4 pixels (MNIST: 2), flips.
    "supsup": {
        **CALIBRATED,
        "supermask.sparsity": 32,
        **under("learning.plan", plan(250, 128, "cosine", every="step")),
        **under("learning.optimiser", adam(1e-3, 1e-4)),
        **under("learning.gates_optimiser", adam(1e-3, 1e-4)),
        **under("learning.augmentation", shifted(flip=True, shift=mnist_or(2, 4))),
    },
    # SupSup (OOD in CLOM), the authors' fork of SupSup: as CLOM, decay 1e-4 in both steps, batch 32 for MNIST.
    "supsup-ood": {
        **CALIBRATED,
        "supermask.sparsity": 32,
        **under("learning", contrastive(batch=mnist_or(32, 128), weight_decay=1e-4)),
    },
    # HyperNet (chrhenning/hypercl), settings of the official code. 24 epochs of MNIST are its 2000 iterations.
    "hypernet": {
        "target.kind": mnist_or("mlp", "resnet32"),
        "target.hidden": mnist_or([400, 400], ABSENT),
        "target.width": mnist_or(ABSENT, 16),
        "target.n": mnist_or(ABSENT, 5),
        "hypernetwork.chunk": mnist_or(42000, 7000),
        "hypernetwork.task_vector": mnist_or(96, 32),
        "hypernetwork.chunk_vector": mnist_or(96, 32),
        "hypernetwork.hidden": mnist_or([10, 10], []),
        "beta": mnist_or(0.01, 0.05),
        **under("learning.plan", plan(mnist_or(24, 200), mnist_or(128, 32), mnist_or("constant", "steps"))),
        "learning.plan.schedule.every": mnist_or("step", "epoch"),
        "learning.plan.schedule.steps": mnist_or([], [80, 120, 160, 180]),
        "learning.plan.schedule.drop": mnist_or(0.1, [0.1, 0.1, 0.1, 0.5]),
        # ReduceLROnPlateau of the accuracy with a factor of sqrt(0.1), patience 5 and min_lr 0.5e-6.
        "learning.plan.plateau.monitor": mnist_or(ABSENT, "accuracy"),
        "learning.plan.plateau.patience": mnist_or(ABSENT, 5),
        "learning.plan.plateau.drop": mnist_or(ABSENT, math.sqrt(0.1)),
        "learning.plan.plateau.smallest_lr": mnist_or(ABSENT, 5e-7),
        "learning.plan.plateau.stop": mnist_or(ABSENT, False),
        "learning.plan.plateau.restore_best": mnist_or(ABSENT, False),
        **under("learning.optimiser", adam(1e-3)),
        **under("learning.augmentation", shifted(flip=mnist_or(False, True), shift=mnist_or(0, 4))),
    },
    # OWM (beijixiong3510/OWM), the official CNN code; MNIST's mean and deviation are our choice.
    "owm": {
        **under("plan", plan(25, 64)),
        **under("optimiser", sgd(0.02, 0.9)),
        **under("augmentation", shifted(flip=False, shift=0)),
        "alphas": [1e-5, 1e-4, 1e-2, 1e-1],
        "projector_stride": 2,
        "n_classes": None,
        "clip": 10.0,
        "update": "batch",
        "network.channels": [64, 128, 256],
        "network.hidden": [1000, 1000],
        "network.dropout": 0.2,
        "network.mean": mnist_or([0.1307] * 3, [125.3 / 255, 123.0 / 255, 113.9 / 255]),
        "network.std": mnist_or([0.3081] * 3, [63.0 / 255, 62.1 / 255, 66.7 / 255]),
    },
    # MUC (liuyudut/MUC), training loop: stages 1 and 3.
    "muc": {
        **under("plan", plan(200, 128, "steps", steps=[120, 160, 180], drop=0.1)),
        **under("optimiser", sgd(0.1, 0.9, 5e-4)),
        **under("augmentation", shifted(flip=mnist_or(False, True), shift=mnist_or(2, 4))),  # on MNIST our choice
        **under("side_training.plan", plan(80, 128, "steps", steps=[40, 60, 70], drop=0.1)),
        **under("side_training.optimiser", sgd(0.1, 0.9, 5e-4)),
        "sides": 3,
        "temperature": 2.0,
        "ood": "svhn",
        "predict_with": "main",
    },
    # PASS (Impression2805/CVPR21_PASS); StepLR(45) as it works there. Tiny-ImageNet: flips alone.
    "pass": {
        **under("plan", plan(101, 64, "steps", steps=[44, 89], drop=0.1)),
        **under("optimiser", adam(1e-3, 2e-4)),
        **under("augmentation", shifted(flip=mnist_or(False, True), shift=per_data(0, 4, 4, 0))),
        "temperature": 0.1,
        "prototypes": 10.0,
        "distillation": 10.0,
    },
    "lwf-r": LWF_R,
    "icarl": ICARL,
    # Mnemonics (yaoyao-liu/class-incremental-learning): exemplars by SGD 1e-5/0.9/5e-4, one pass; weight transfer.
    "mnemonics": {
        **ICARL,
        "exemplars.version": "prototype",
        **under("exemplars.plan", plan(1, 128)),
        **under("exemplars.optimiser", sgd(1e-5, 0.9, 5e-4)),
        "weight_transfer": True,
        "adjust_old": None,
    },
    # BiC (sairin1202/BIC), losses and training loop: stages 1 and 2.
    "bic": {
        **under("plan", plan(250, 128, "steps", steps=[70, 140, 210], drop=0.1)),
        **under("optimiser", sgd(0.1, 0.9, 2e-4)),
        **under("augmentation", shifted(flip=mnist_or(False, True), shift=mnist_or(0, 4))),
        **under("memory", {"size": MEMORY, "mode": "total"}),
        "temperature": 2.0,
        "kd_weight": "repo",
        "selection": "random",
        "leak_validation": False,
        **under("correction.plan", plan(250, 100)),
        **under("correction.optimiser", adam(1e-3)),
        "correction.shift_penalty": 0.0,
    },
    # DER++ (mammoth), table of the training loop; between the rows of 500 and 5120 images where the memory is 2000.
    "derpp": {
        **under("plan", plan(per_data(1, 50, 50, 100), mnist_or(10, 32))),
        **under("optimiser", sgd(0.03)),
        **under("augmentation", shifted(flip=mnist_or(False, True), shift=mnist_or(0, 4))),
        "memory.size": MEMORY,
        "alpha": per_data(0.2, 0.1, 0.2, 0.2),
        "beta": per_data(1.0, 0.5, 0.5, 0.5),
        "replay_batch": mnist_or(128, 32),
        "n_classes": None,
    },
    # RPS-Net (brjathu/RPSnet), training loop, with the MNIST script's epochs, J and repeated
    # exemplars. gamma is scaled for 20 tasks.
    "a-rps": {
        **under("plan", plan(mnist_or(10, 100), 128, "steps", drop=0.5)),
        "plan.schedule.steps": mnist_or([6, 8], [20, 40, 60, 80]),
        **under("optimiser", adam(1e-3)),
        **under("augmentation", shifted(flip=mnist_or(False, True), shift=mnist_or(0, 4))),
        **under("memory", {"size": MEMORY, "mode": "total", "rounding": "floor"}),
        "paths.widths": [64, 64, 64, 128, 128, 256, 256, 512, 512],
        "paths.pools": [5, 7],
        "paths.modules": 8,
        "switching.kind": "interval",
        "switching.interval": mnist_or(1, 2),
        "candidates": 8,
        "distill": "repo",
        "gamma": Each((2.5, 2.5, 2.5, 1.0, 2.5, 2.5)),
        "repeat_exemplars": mnist_or(10, 1),
        "n_classes": None,
    },
    # Co2L (chaht01/Co2L), losses and training loop, head included; public scripts for Tiny-ImageNet.
    "co2l": {
        **under("plan", plan(per_data(100, 100, 100, 50), 512, "cosine", every="step", warmup=10)),
        "plan.schedule.start": per_data(0.02, 0.02, 0.02, 0.1),
        "first_epochs": 500,
        **under("optimiser", sgd(per_data(0.5, 0.5, 0.5, 0.1), 0.9, 1e-4)),
        **under("augmentation", {"flip": mnist_or(False, True), "colour": mnist_or(False, True), "crop": True}),
        "augmentation.crop_area": per_data([0.2, 1.0], [0.2, 1.0], [0.2, 1.0], [0.1, 1.0]),
        **under("memory", {"size": MEMORY, "mode": "total"}),
        "projection": 128,
        "temperature": 0.5,
        "base_temperature": 0.07,
        "distillation": 1.0,
        "similarity_temperature": per_data(0.2, 0.2, 0.2, 0.1),
        "past_temperature": per_data(0.01, 0.01, 0.01, 0.1),
        "teacher_bn": "eval",
        "head.views": 1,
        **under("head.plan", plan(100, 256, "steps", steps=[60, 75, 90], drop=0.2)),
        **under("head.optimiser", sgd(1.0, 0.9)),
    },
    # CCG (no official code; lit-leo/cgate), training loop and backbones.
    # 400 epochs are our reading of "several hundred".
    "ccg": {
        **under("plan", plan(400, 64)),
        **under("optimiser", adam(1e-3)),
        "gates_optimiser": None,
        **under("augmentation", shifted(flip=mnist_or(False, True), shift=mnist_or(2, 4))),  # on MNIST our choice
        "network.kind": mnist_or("conv", "resnet18"),
        "network.channels": mnist_or([100, 100, 100], ABSENT),
        "network.width": Each((ABSENT, 64, 128, 128, 128, 128)),
        "network.stem_stride": mnist_or(ABSENT, 1),
        "sparsity": mnist_or(0.5, 0.1),
        "patience": 20,
        "threshold": 0.0,
        "rehearsal": "generative",  # WGAN-GP of Gulrajani et al. 2017; steps and width are ours
        **under("wgan", {"steps": 20000, "critic_steps": 5, "batch": 64, "lr": 1e-4, "penalty": 10.0, "latent": 128}),
        "wgan.width": mnist_or(64, 128),
        "memory": MEMORY,
        "rule": "hard",
    },
}
OWN_NETWORK = ("hypernet", "owm", "a-rps", "ccg")
"""Systems that do not use the experiment's network."""


def value_at(value: Any, experiment: str) -> Any:
    return value[EXPERIMENTS.index(experiment)] if isinstance(value, Each) else value
