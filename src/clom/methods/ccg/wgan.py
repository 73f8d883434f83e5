"""A generator of one task's images: Wasserstein GAN with gradient penalty (Gulrajani et al. 2017).

Tested by tests/methods/ccg/test_method.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.nets.passes import BACKWARD, CountedNetwork, count_again
from clom.settings import Positive, PositiveNumber, Settings


class WganSettings(Settings):
    steps: Positive = 2000
    """Training steps of the generator."""
    critic_steps: Positive = 5
    batch: Positive = 64
    lr: PositiveNumber = 1e-4
    penalty: PositiveNumber = 10.0
    latent: Positive = 128
    width: Positive = 64


class Generator(CountedNetwork):
    """From noise to images in [0, 1], cropped to their side if that is not a multiple of four."""

    def __init__(self, settings: WganSettings, channels: int, side: int) -> None:
        super().__init__()
        width, self.latent, self.side, self.corner = settings.width, settings.latent, side, math.ceil(side / 4)
        self.start = nn.Linear(settings.latent, 2 * width * self.corner**2)
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, width, 3, padding=1),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        images: Tensor = self.body(self.start(noise).view(len(noise), -1, self.corner, self.corner))
        return images[:, :, : self.side, : self.side]

    @torch.no_grad()
    def sample(self, n: int, randomness: torch.Generator) -> Tensor:
        noise = torch.randn(n, self.latent, generator=randomness).to(self.start.weight.device)
        images: Tensor = self(noise)
        return images


class Critic(CountedNetwork, nn.Sequential):
    """From images to one score each."""


def make_critic(settings: WganSettings, channels: int, side: int) -> Critic:
    """Without batch normalisation: the penalty is on the gradient of each image."""
    width = settings.width
    return Critic(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(2 * width * math.ceil(side / 4) ** 2, 1),
    )


def gradient_penalty(critic: nn.Module, real: Tensor, fake: Tensor, randomness: torch.Generator) -> Tensor:
    """`(|grad D| - 1)^2` at random points between real and generated images, averaged over the batch."""
    share = torch.rand(len(real), *[1] * (real.ndim - 1), generator=randomness).to(real.device)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    count_again(critic, between, BACKWARD)  # of the gradient, which is differentiated as well
    penalty: Tensor = (gradient.flatten(1).norm(dim=1) - 1).pow(2).mean()
    return penalty


def train_generator(
    generator: Generator,
    real: Tensor,
    settings: WganSettings,
    randomness: torch.Generator,
    task: int,
    context: TrainingContext,
) -> None:
    """Eq. 9: the critic's loss is E[D(fake)] - E[D(real)] + penalty, the generator's -E[D(fake)]."""
    critic = make_critic(settings, real.shape[1], real.shape[2]).to(real.device)
    optimisers = [torch.optim.Adam(net.parameters(), settings.lr, betas=(0.5, 0.9)) for net in (generator, critic)]

    def fakes() -> Tensor:
        noise = torch.randn(settings.batch, settings.latent, generator=randomness).to(real.device)
        images: Tensor = generator(noise)
        return images

    for step in context.steps(settings.steps, critic, *optimisers, randomness):
        for _ in range(settings.critic_steps):
            rows = torch.randint(len(real), (settings.batch,), generator=randomness).to(real.device)
            with torch.no_grad():
                fake = fakes()
            penalty = settings.penalty * gradient_penalty(critic, real[rows], fake, randomness)
            _step(optimisers[1], critic(fake).mean() - critic(real[rows]).mean() + penalty)
        loss = _step(optimisers[0], -critic(fakes()).mean())
        context.report_step(Progress(task, "generator", step + 1, settings.steps), loss)
    generator.requires_grad_(False)


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return loss.detach()
