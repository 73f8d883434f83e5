"""`check_score`, on outputs that are made up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from clom.errors import UserError
from clom.ood.registry import check_score_class
from clom.ood.scores import Outputs, Score
from clom.testing.expectations import is_finite, require

T = TypeVar("T")


def check_score(make: Callable[[], Score]) -> None:
    """`make()`, for example the class itself, gives a fresh score.

    It must return one finite number per image, need nothing that it does not declare, depend on nothing but its inputs,
    and rank most of a task's own images above images that are nothing like them.
    """
    score = make()
    accept(check_score_class, type(score))
    own, held_out, other = (made_up_outputs(seed, shift) for seed, shift in ((0, 0.0), (1, 0.0), (2, 6.0)))
    own, held_out, other = (outputs.only(score.needs) for outputs in (own, held_out, other))
    untouched = copy.deepcopy((own, held_out))
    fitted = called("fit", lambda: score.fit(own))
    require(fitted is score, f"fit returned {fitted!r:.80}", "fit returns the score itself")
    held_out, other = held_out.only(set(score.needs) - {"labels"}), other.only(set(score.needs) - {"labels"})
    values = called("the call", lambda: score(held_out))
    _check_values(values, len(held_out.block), "[images]")
    require(
        torch.equal(values, score(held_out)),
        "Two calls with the same outputs give different numbers",
        "a score is a function of its inputs",
    )
    first = score(rows(held_out, slice(0, 3)))
    require(
        torch.allclose(first.double(), values[:3].double(), rtol=1e-4, atol=1e-6),
        "An image's score depends on which images are scored together with it",
        "each image is scored by itself",
    )
    again = make().fit(own)(held_out)
    require(
        torch.equal(values, again), "A second score, fitted to the same data, differs", "the same data, the same score"
    )
    for before, after in zip(untouched, (own, held_out), strict=True):
        require(_same(before, after), "The outputs that were given are changed in place", "inputs are left alone")
    require(score(rows(held_out, slice(0, 0))).shape == (0,), "No images do not give shape [0]", "any number of images")
    likelier = float((values[:, None].double() > score(other)[None].double()).double().mean())
    require(
        likelier > 0.5,
        f"Only {100 * likelier:.0f}% of the pairs of an own image and an image unlike any have the own one higher",
        "high = belongs to the task",
    )


def made_up_outputs(seed: int, shift: float = 0.0, n_images: int = 40, n_classes: int = 3, d: int = 8) -> Outputs:
    """Outputs of a linear classifier for clusters of features, moved off them by `shift` standard deviations."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n_images) % n_classes
    weight, bias = torch.eye(n_classes, d), torch.full((n_classes,), 0.1)
    features = 4 * weight[labels] + torch.randn(n_images, d, generator=generator)
    if shift:  # away from every cluster: no class is favoured, and unusual directions are
        features = torch.cat([torch.zeros(n_images, n_classes), features[:, n_classes:] + shift], 1)
    block = features @ weight.T + bias
    return Outputs(block, features, labels, odin=block - block.mean(1, keepdim=True), linear_head=(weight, bias))


def rows(outputs: Outputs, part: slice) -> Outputs:
    """The outputs of some of the images."""

    def cut(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[part]

    block, features, labels, odin = outputs.block[part], cut(outputs.features), cut(outputs.labels), cut(outputs.odin)
    return Outputs(block, features, labels, odin, outputs.linear_head)


def accept(check: Callable[[object], None], kind: type) -> None:
    try:
        check(kind)
    except UserError as problem:
        raise AssertionError(str(problem)) from problem


def called(what: str, do: Callable[[], T]) -> T:
    try:
        return do()
    except UserError as problem:
        raise AssertionError(f"{what} failed: {problem}") from problem


def _check_values(values: Tensor, n_images: int, shape: str) -> None:
    require(
        isinstance(values, Tensor) and values.shape == (n_images,),
        f"The call returned {described(values)} for {n_images} images",
        f"one number per image, {shape}",
    )
    require(values.is_floating_point(), f"The call returned {values.dtype}", "scores are floating point numbers")
    require(not values.requires_grad, "The scores carry gradients", "scores are plain numbers")
    require(is_finite(values), "The call returned NaN or infinity", "scores are finite")


def described(thing: object) -> str:
    return f"a tensor of shape {tuple(thing.shape)}" if isinstance(thing, Tensor) else f"{thing!r:.80}"


def _same(one: Outputs, other: Outputs) -> bool:
    pairs = [(one.block, other.block), (one.features, other.features), (one.odin, other.odin)]
    return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)
