"""CLOM beside the authors' code: github.com/k-gyuhak/CLOM, commit 223c8d1b0dfdbfbd8d1f21a20c53a2384959cba9.

Two steps of `sup_simclr_CSI.train` on the second task, at s = 1/700 and s = 350, with `SGD_hat` in `LARC`, and one step
of `sup_CSI_linear.train`, with the network for MNIST made narrow, without dropout and random augmentation. The trust
coefficient is 0.1 instead of 0.001, which would make changes too small to be compared. The gate of the authors'
projection is held open: ours has none.
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
        10.531586 + 0.050000042,
        {
            "conv1.weight": (0.19392367, 0.0085804381),
            "conv1.bias": (0.022192158, 0.0062908394),
            "conv2.weight": (0.17439798, -0.0046630909),
            "conv2.bias": (0.043767581, -0.022462397),
            "conv3.weight": (0.085432887, 0.0038150559),
            "conv3.bias": (0.049419753, -0.027579944),
            "fc1.weight": (0.1018258, -0.00013536628),
            "fc1.bias": (0.078080679, 0.014373102),
            "g1.weight": (0.038092077, -0.0047925723),
            "g1.bias": (0.040431766, 0.024124868),
            "g2.weight": (0.042158753, -0.00040493655),
            "g2.bias": (0.022775045, -0.0041311547),
            "e1": (18.743438, 1.0274988),
            "e2": (15.496842, -0.64811116),
            "e3": (8.774105, -0.56358837),
            "e4": (16.805713, -5.4260804),
        },
        {
            "conv1.weight": (0.009232483, -9.7075871e-05),
            "conv1.bias": (0.001015991, 0.00064973094),
            "conv2.weight": (0.011924967, 0.00061302761),
            "conv2.bias": (0.0011641571, -0.00046326472),
            "conv3.weight": (0.0080232297, -0.00066737582),
            "conv3.bias": (0.0018466187, 0.0008213845),
            "fc1.weight": (0.010016086, 5.6923427e-05),
            "fc1.bias": (0.007264327, -0.0026038995),
            "g1.weight": (0.0038092007, 0.00047926385),
            "g1.bias": (0.0040431795, -0.0024124848),
            "g2.weight": (0.0042159026, 4.0491646e-05),
            "g2.bias": (0.00227753, 0.00041309575),
            "e1": (0.00029274702, -1.604813e-05),
            "e2": (0.00038561455, 1.6127243e-05),
            "e3": (0.00039471725, 2.5353919e-05),
            "e4": (0.00043557151, 0.00014063343),
        },
    ),
    (
        10.529892 + 0.061159849,
        {
            "conv1.weight": (0.21375695, -0.0019780871),
            "conv1.bias": (0.0057884588, -0.0028543054),
            "conv2.weight": (0.25242901, -0.017373073),
            "conv2.bias": (0.080131788, 0.049674267),
            "conv3.weight": (0.11556214, -0.0005408169),
            "conv3.bias": (0.076494094, -0.052858949),
            "fc1.weight": (0.14288073, 0.0033482441),
            "fc1.bias": (0.0881775, 0.017822049),
            "g1.weight": (0.065423962, -0.0032926228),
            "g1.bias": (0.038888108, 0.023693193),
            "g2.weight": (0.050627317, 0.0018025009),
            "g2.bias": (0.022476079, -0.0056271811),
            "e1": (26.164791, 7.9845751),
            "e2": (15.556886, -1.5818863),
            "e3": (9.1182976, -3.3128991),
            "e4": (18.520105, -8.3425017),
        },
        {
            "conv1.weight": (0.017286845, -0.0002570487),
            "conv1.bias": (0.001183033, 0.00075655509),
            "conv2.weight": (0.024775353, 0.001493283),
            "conv2.bias": (0.0065120484, -0.0026827879),
            "conv3.weight": (0.014903326, -0.00063967559),
            "conv3.bias": (0.0037717118, 0.0016735408),
            "fc1.weight": (0.022128941, -0.00027665555),
            "fc1.bias": (0.014855196, -0.0053517046),
            "g1.weight": (0.0093471516, 0.00076060171),
            "g1.bias": (0.0075175554, -0.0045405549),
            "g2.weight": (0.0086268486, -0.00014380823),
            "g2.bias": (0.0042898171, 0.00093452881),
            "e1": (0.00044177394, -9.7247955e-05),
            "e2": (0.00070262103, 5.4369869e-05),
            "e3": (0.00073659712, 0.00017004492),
            "e4": (0.00081124007, 0.00032235226),
        },
    ),
]
"""Contrastive loss + sparsity, gradients and changes; of the projection (g1, g2) and of the embeddings last."""
HEAD_LOSS = 2.3390551
HEAD_CHANGES = {
    "head.weight": (0.0048104787, -0.000857382),
    "head.bias": (0.023530307, -0.012452597),
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
    fill(protection.net.shared_parameters(), 0, scale=0.5)
    fill(protection.mask_parameters(0), 25)

    def start(phase: int, parameters: list[nn.Parameter]) -> None:
        if phase == 0:
            fill(parameters[8:12], 8)  # the projection
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
