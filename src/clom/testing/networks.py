"""`check_network`: plain modules that return features, and gated networks for masked methods."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from clom.nets.compact import compact, open_features
from clom.nets.gates import Gates
from clom.nets.layers import GatedJoin, GatedResidual, Net
from clom.testing.expectations import all_close, is_finite, require


def check_network(make: Callable[[], nn.Module], image_size: int = 32) -> None:
    """`make()` gives a fresh network for RGB images of `image_size` x `image_size` pixels in [0, 1].

    A plain module returns features `[images, d]`. A gated network (`clom.nets.layers.Net`) is checked for what masked
    methods rely on as well: a closed unit is exactly zero and its weights do not matter, gates are derived from the
    layers, and a task's compact network equals the masked one.
    """
    torch.manual_seed(0)
    network = make()
    require(isinstance(network, nn.Module), f"{network!r:.80} is not a torch.nn.Module", "a network is a module")
    if isinstance(network, Net):
        _check_gate_graph(network)
        network.add_task()
        network.add_task()
    _check_features(network, image_size)
    _check_gradients(network, image_size)
    _check_state(make, network, image_size)
    if isinstance(network, Net):
        _stir(network)
        _check_tasks(network, image_size)
        _check_gates(network, image_size)


def images(count: int, image_size: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, image_size, image_size, generator=torch.Generator().manual_seed(seed))


def features_of(network: nn.Module, pixels: Tensor, task: int = 0, gates: Gates | None = None) -> Tensor:
    """A gated network with all gates open unless told otherwise, or any other module."""
    features: Tensor = network(pixels, task, gates or {}) if isinstance(network, Net) else network(pixels)
    return features


# --- any network -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def _check_features(network: nn.Module, image_size: int) -> None:
    pixels, random_before = images(6, image_size), torch.get_rng_state()
    untouched = pixels.clone()
    network.eval()
    features = features_of(network, pixels)
    shape = "features [images, d], float32"
    require(isinstance(features, Tensor), f"The network returned {type(features).__name__}", shape)
    require(
        features.ndim == 2 and len(features) == 6,
        f"The network returned shape {tuple(features.shape)} for 6 images",
        shape,
    )
    require(features.dtype == torch.float32, f"The network returned {features.dtype}", shape)
    declared = getattr(network, "n_features", features.shape[1])
    require(
        declared == features.shape[1],
        f"n_features is {declared}, but the network returned {features.shape[1]} features",
        "n_features is the number of features",
    )
    require(is_finite(features), "Features of images in [0, 1] are NaN or infinite", "features are finite")
    require(bool((features != features[:1]).any()), "All images have the same features", "features depend on the image")
    require(
        torch.equal(features, features_of(network, pixels)) and torch.equal(random_before, torch.get_rng_state()),
        "In evaluation mode two passes over the same images differ, or draw random numbers",
        "a network is deterministic in evaluation mode",
    )
    parts = [features_of(network, pixels[:1]), features_of(network, pixels[1:])]
    require(
        all_close([torch.cat(parts)], [features]),
        "In evaluation mode an image's features depend on which images are in the same batch",
        "each image is judged by itself in evaluation mode",
    )
    if isinstance(network, Net):  # plain networks are always given the usual layout
        in_another_format = features_of(network, pixels.contiguous(memory_format=torch.channels_last))
        require(
            all_close([in_another_format], [features]),
            "Features change when the images are laid out as channels_last",
            "the memory format changes no value",
        )
    require(torch.equal(pixels, untouched), "The network changes the images that it is given", "inputs are left alone")


def _check_gradients(network: nn.Module, image_size: int) -> None:
    """Every trainable parameter must be reached; a network without any is frozen."""
    network.train()
    trainable = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    of_other_tasks = {id(parameter) for parameter in network.task_parameters(1)} if isinstance(network, Net) else set()
    wanted = {name: parameter for name, parameter in trainable.items() if id(parameter) not in of_other_tasks}
    if wanted:
        network.zero_grad(set_to_none=True)
        features = features_of(network, images(16, image_size, seed=1))
        # A random direction: the sum of normalised values would have no gradient.
        features.mul(torch.randn(features.shape, generator=torch.Generator().manual_seed(2))).sum().backward()  # type: ignore[no-untyped-call]
        unreached = [name for name, parameter in wanted.items() if parameter.grad is None]
        require(
            not unreached,
            f"No gradient reaches {', '.join(unreached)}",
            "every trainable parameter takes part in computing the features (freeze what does not learn)",
        )
        broken = [name for name, parameter in wanted.items() if not is_finite(_gradient(parameter))]
        require(not broken, f"The gradient of {', '.join(broken)} is NaN or infinite", "gradients are finite")
    network.zero_grad(set_to_none=True)
    network.eval()


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@torch.no_grad()
def _check_state(make: Callable[[], nn.Module], network: nn.Module, image_size: int) -> None:
    """After a training pass, so that running statistics are not the initial ones."""
    pixels = images(6, image_size)
    expected = features_of(network.eval(), pixels)
    contract = "state_dict holds everything that features depend on, and loads into a fresh network"
    torch.manual_seed(1)
    other = make()
    for _ in range(2 if isinstance(other, Net) else 0):
        other.add_task()  # type: ignore[operator]
    try:
        other.load_state_dict(network.state_dict())
    except (RuntimeError, KeyError) as problem:
        raise AssertionError(f"state_dict does not load ({problem}). The contract: {contract}.") from problem
    require(
        torch.equal(features_of(other.eval(), pixels), expected),
        "A fresh network with the same state_dict gives other features",
        contract,
    )
    duplicate = copy.deepcopy(network)
    require(
        torch.equal(features_of(duplicate.eval(), pixels), expected),
        "A deep copy gives other features",
        "a network can be copied: methods keep a copy to return to if learning fails",
    )


# --- gated networks --------------------------------------------------------------------------------------------------


def _check_gate_graph(network: Net) -> None:
    contract = "gated layers name the gate groups of their inputs and outputs, and sizes agree"
    sizes = network.gate_sizes()
    require(sizes, "There is no gated layer", contract)
    for name, layer in network.named_modules():
        gate_in, gate_out = getattr(layer, "gate_in", None), getattr(layer, "gate_out", None)
        for group in (gate_in, gate_out):
            require(
                group is None or group in sizes,
                f"'{name}' names the gate group '{group}', which no layer has",
                contract,
            )
        if isinstance(layer, GatedJoin):
            require(
                sizes[layer.gate_in] == sizes[layer.gate_out],
                f"'{name}' joins {sizes[layer.gate_in]} units to {sizes[layer.gate_out]}",
                contract,
            )
    for layer in network.gated_layers():
        if layer.gate_out is not None:
            require(
                sizes[layer.gate_out] == layer.weight.shape[0],
                f"Layers of {sizes[layer.gate_out]} and of {layer.weight.shape[0]} units share '{layer.gate_out}'",
                contract,
            )
        if layer.gate_in is not None:
            inputs = sizes[layer.gate_in] * layer.spread
            require(
                inputs == layer.weight.shape[1],
                f"'{layer.gate_in}' has {sizes[layer.gate_in]} units, each for {layer.spread} inputs, but what reads "
                f"them has {layer.weight.shape[1]} inputs",
                contract,
            )
    group = network.feature_group
    require(
        group is None or sizes.get(group) == network.n_features,
        f"feature_group is '{group}' with {sizes.get(group or '')} units, n_features is {network.n_features}",
        "feature_group is the gate group of the features, or None if they have no gates",
    )


def _stir(network: Net) -> None:
    """Normalisation and scales as after training: where they are the identity they would hide mistakes."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in (*network.task_parameters(0), *network.task_parameters(1)):
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        for layer in network.gated_layers():
            for norm in layer.norms_of(1):
                if norm.running_mean is not None and norm.running_var is not None:
                    norm.running_mean.copy_(0.3 * torch.randn(norm.running_mean.shape, generator=generator))
                    norm.running_var.copy_(0.5 + torch.rand(norm.running_var.shape, generator=generator))


def _check_tasks(network: Net, image_size: int) -> None:
    """What is a task's own stays its own, and together with the shared weights it is all there is."""
    parts = [network.shared_parameters(), network.task_parameters(0), network.task_parameters(1)]
    found = [id(parameter) for part in parts for parameter in part]
    lost = [
        name
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and id(parameter) not in set(found)
    ]
    require(
        not lost and len(found) == len(set(found)),
        f"Neither shared by gated layers nor a task's own, or both: {', '.join(lost) or 'some parameters'}",
        "every trainable parameter is a gated layer's or belongs to one task: nothing else could be protected",
    )
    pixels = images(4, image_size)
    with torch.no_grad():
        before = features_of(network, pixels, 0)
        network.train()
        features_of(network, images(8, image_size, seed=4), 1)
        network.eval()
        for parameter in network.task_parameters(1):
            parameter.add_(0.1)
        network.add_task()
        network.eval()
        require(
            torch.equal(features_of(network, pixels, 0), before),
            "Features of task 0 change when task 1 is trained or a task is added",
            "normalisation and everything else that is not gated is each task's own",
        )


@torch.no_grad()
def _check_gates(network: Net, image_size: int) -> None:
    pixels, sizes = images(4, image_size), network.gate_sizes()
    generator = torch.Generator().manual_seed(5)
    opened = {group: torch.ones(size) for group, size in sizes.items()}
    require(
        all_close([features_of(network, pixels, 1, opened)], [features_of(network, pixels, 1)]),
        "Gates of one change the features",
        "a gate multiplies its unit's output; a missing group is open",
    )
    for share in (0.5, 0.9):
        gates = {group: (torch.rand(size, generator=generator) < share).float() for group, size in sizes.items()}
        masked = features_of(network, pixels, 1, gates)
        if network.feature_group is not None:
            closed = masked[:, gates[network.feature_group] == 0]
            require(
                bool((closed == 0).all()),
                f"Features of closed units are up to {float(closed.abs().max() if closed.numel() else 0):.3g}",
                "a closed unit puts out exactly zero",
            )
        _check_weights_behind_gates(network, pixels, gates, masked)
        small = compact(network, 1, gates)
        require(
            all_close([features_of(small, pixels)], [masked[:, open_features(network, gates)]]),
            "The compact network of a task gives other features than the masked one",
            "forward uses nothing but gated layers, joins and functions of each unit by itself that map zero to zero",
        )


def _check_weights_behind_gates(network: Net, pixels: Tensor, gates: Gates, masked: Tensor) -> None:
    """What the protection relies on: rows of closed output units and columns of closed input units are irrelevant."""
    other = copy.deepcopy(network)
    for layer in other.gated_layers():
        if layer.gate_out is not None:
            closed = gates[layer.gate_out] == 0
            layer.weight[closed] += 1.0
            if layer.bias is not None and not isinstance(layer, GatedResidual):
                layer.bias[closed] += 1.0
        if layer.gate_in is not None:
            layer.weight[:, (gates[layer.gate_in] == 0).repeat_interleave(layer.spread)] += 1.0
    require(
        torch.equal(features_of(other, pixels, 1, gates), masked),
        "Weights into or out of closed units change the features",
        "a closed unit puts out exactly zero, wherever it is in the network",
    )
