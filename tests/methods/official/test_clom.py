"""CLOM beside the authors' code: github.com/k-gyuhak/CLOM, commit 223c8d1b0dfdbfbd8d1f21a20c53a2384959cba9.

Two steps of `sup_simclr_CSI.train` on the second task, at s = 1/700 and s = 350, with `SGD_hat` in `LARC`, and one step
of `sup_CSI_linear.train`, with the network for MNIST made narrow, without dropout and random augmentation. The trust
coefficient is 0.1 instead of 0.001, which would make changes too small to be compared.
"""

from __future__ import annotations

import pytest
from torch import nn

from clom.data.views import Augmentation
from clom.learning.learners.contrastive import ContrastiveSettings, SgdHeadSettings
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.protection.hard_attention import HardAttentionSettings
from clom.learning.schedule import Schedule
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import LearnedTask
from clom.nets import AlexNetSettings
from methods.official.recording import StepRecorder, differing, fill, fixed_task, in_order

__all__ = ["in_order"]

FEATURE_STEPS = [
    (
        10.544838 + 0.050000042,
        {
            "conv1.weight": (0.11540935, 0.0041282373),
            "conv1.bias": (0.012604711, 0.0043503683),
            "conv2.weight": (0.10033678, -0.0029508493),
            "conv2.bias": (0.025208809, -0.012244938),
            "conv3.weight": (0.052027641, 0.0033659133),
            "conv3.bias": (0.031318777, -0.015731178),
            "fc1.weight": (0.058403298, -0.00031389055),
            "fc1.bias": (0.044019318, 0.015580286),
            "g1.weight": (0.018792011, -0.0023156219),
            "g1.bias": (0.012279438, 0.0080820235),
            "g2.weight": (0.020899266, -0.0049099773),
            "g2.bias": (0.017954157, -0.0096420961),
            "e1": (11.438961, 0.94898998),
            "e2": (9.0602459, 0.25940202),
            "e3": (4.5394352, -0.22372312),
            "e4": (8.1971928, -2.1436268),
            "e of g": (5.00063, -1.5813233),
        },
        {
            "conv1.weight": (0.0054519206, -8.7327279e-05),
            "conv1.bias": (0.00054261088, 0.00034700218),
            "conv2.weight": (0.0067110866, 0.00035960959),
            "conv2.bias": (0.00050057047, -0.00020537455),
            "conv3.weight": (0.0048247899, -0.00050558389),
            "conv3.bias": (0.00080469099, 0.00040998401),
            "fc1.weight": (0.0057565845, 5.8446264e-05),
            "fc1.bias": (0.0043537363, -0.0018064991),
            "g1.weight": (0.0014900378, 0.00014628139),
            "g1.bias": (0.00078826412, -0.0002975867),
            "g2.weight": (0.0020899665, 0.00049100604),
            "g2.bias": (0.0017954256, 0.000964193),
            "e1": (0.00029274705, -2.4286649e-05),
            "e2": (0.00038561445, -1.1040465e-05),
            "e3": (0.0003947174, 1.9453364e-05),
            "e4": (0.00043557144, 0.00011390515),
            "e of g": (0.00047798598, 0.00015115103),
        },
    ),
    (
        10.542301 + 0.061053872,
        {
            "conv1.weight": (0.13560875, 0.0026621218),
            "conv1.bias": (0.0053005658, -0.0033941696),
            "conv2.weight": (0.14496068, -0.010620848),
            "conv2.bias": (0.043207332, 0.026055942),
            "conv3.weight": (0.074253022, -0.0015555214),
            "conv3.bias": (0.04878472, -0.030649995),
            "fc1.weight": (0.065233795, 0.0015518227),
            "fc1.bias": (0.031687823, 0.012173664),
            "g1.weight": (0.034798796, -0.0019595147),
            "g1.bias": (0.012043726, 0.0075612607),
            "g2.weight": (0.028924417, -0.0039666097),
            "g2.bias": (0.018467139, -0.012629822),
            "e1": (15.434531, 3.8606615),
            "e2": (9.5505444, -1.113057),
            "e3": (5.6390848, -1.6403498),
            "e4": (8.8320011, -4.6308064),
            "e of g": (7.4402382, -0.11813785),
        },
        {
            "conv1.weight": (0.010830223, -0.00023192639),
            "conv1.bias": (0.00071191788, 0.00045527479),
            "conv2.weight": (0.014045637, 0.00080969174),
            "conv2.bias": (0.0034530595, -0.0014317004),
            "conv3.weight": (0.0093763633, -0.0003911117),
            "conv3.bias": (0.0016245558, 0.00063415619),
            "fc1.weight": (0.010453449, -8.6914297e-05),
            "fc1.bias": (0.0070315797, -0.0028717902),
            "g1.weight": (0.0040245987, 0.00027313179),
            "g1.bias": (0.0017587417, -0.00072578566),
            "g2.weight": (0.0044584476, 0.00083855849),
            "g2.bias": (0.0034392958, 0.0021307677),
            "e1": (0.00043557654, -8.9753647e-05),
            "e2": (0.00067435549, 3.5770821e-05),
            "e3": (0.00072252387, 0.00013550557),
            "e4": (0.00079283664, 0.00033233342),
            "e of g": (0.0007490352, 0.00014317315),
        },
    ),
]
"""Contrastive loss + sparsity, gradients and changes; of the projection (g1, g2) and of the embeddings last."""
HEAD_LOSS = 2.3390348
HEAD_CHANGES = {
    "head.weight": (0.0047693869, -0.00084596731),
    "head.bias": (0.023524535, -0.012455779),
}


@pytest.mark.usefixtures("in_order")
def test_steps_on_the_second_task_are_those_of_the_authors() -> None:
    constant = Schedule(kind="constant")
    lars = OptimiserSettings(kind="lars", lr=0.1, momentum=0.9, trust=0.1, clip=True)
    settings = ClomSettings(
        calibration="none",
        attention=HardAttentionSettings(s_max=700, sparsity_first=0.25, sparsity_rest=0.1),
        learning=ContrastiveSettings(
            plan=Plan(epochs=1, batch=2, schedule=constant),
            optimiser=lars,
            gates_optimiser=lars,
            projection=5,
            projection_layer="shared",
            augmentation=Augmentation(flip=False, colour=False, crop=False),
            authors_loss=True,
            head=SgdHeadSettings(
                plan=Plan(epochs=1, batch=4, schedule=constant), optimiser=OptimiserSettings(kind="sgd", lr=0.1)
            ),
        ),
    )
    net = AlexNetSettings(channels=(4, 6, 8), hidden=10, dropout=(0.0, 0.0))
    method = Clom(net, settings, (3, 28, 28))
    method.open_task(LearnedTask("first", ("a", "b")))
    protection = method.protection
    *network, weight, bias = protection.weights(0)
    fill(network, 0, scale=0.5)
    fill([weight, bias], 8)  # the shared layer of the projection
    fill(protection.mask_parameters(0), 25)

    def start(phase: int, parameters: list[nn.Parameter]) -> None:
        if phase == 0:
            fill(parameters[10:12], 10)  # the projection's layer of this task
            fill(protection.mask_parameters(1), 16, scale=0.002)
        else:
            fill(parameters, 40)  # the head
            fill(protection.mask_parameters(1), 26)

    recorder = StepRecorder(start)
    method.learn(fixed_task(4, 3, 28), recorder)
    *feature_steps, head_step = recorder.recorded
    for step, (loss, gradients, changes) in zip(feature_steps, FEATURE_STEPS, strict=True):
        assert step.loss == pytest.approx(loss, abs=1e-5)
        assert differing(step.gradients, gradients) == []
        assert differing(step.changes, changes) == []
    assert head_step.loss == pytest.approx(HEAD_LOSS, abs=1e-5)
    assert differing(head_step.changes, HEAD_CHANGES) == []
