"""Compact networks for inference on a CPU: convolutions of oneDNN with packed weights, fused with what follows them.

oneDNN computes with weights in a layout of its own. A plain convolution converts them in every call, which costs a
tenth of the time for a few images, and the sum and the ReLU after it pass over all values again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets.compact import Selection, copy_with
from clom.nets.gates import Gates
from clom.nets.layers import GatedConv2d, Net


def packed(net: Net) -> Net:
    """The same function as the compact network `net`, with packed convolutions if it is on a CPU with oneDNN."""
    parameters = list(net.parameters())
    on_cpu = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parameters)
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return copy_with(net, _packed_layer) if parameters and on_cpu and has_onednn else net


def _packed_layer(module: nn.Module) -> nn.Module | None:
    """The packed form of a convolution; None for all other modules."""
    if isinstance(module, GatedConv2d) and not module.normalised and module.in_channels > 1:
        stride, padding = module.stride[0], module.padding[0]
        assert isinstance(padding, int)
        return PackedConv2d(module.weight, module.bias, stride, padding)
    if isinstance(module, Selection) and module.matrix.shape[1] > 1:
        return PackedConv2d(module.matrix, None, 1, 0, is_identity=True)
    return None


class PackedConv2d(nn.Module):
    """A convolution without gates or normalisation, called like `GatedConv2d`."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, stride: int, padding: int, is_identity: bool = False
    ) -> None:
        super().__init__()
        self.multiply_adds_per_output = 0 if is_identity else weight[0].numel()
        """For counting passes (`clom.nets.passes`), which must not depend on how a layer is computed."""
        self._bias = None if bias is None else bias.detach()
        self._geometry = [padding] * 2, [stride] * 2, [1, 1], 1  # no dilation, one group
        # Image size -> weights in the layout that suits it, and only one of them: the plain weights can be recovered.
        self._packed: tuple[torch.Size | None, Tensor] = (None, weight.detach().contiguous())

    def forward(
        self, values: Tensor, task: int, gates: Gates, *, added: Tensor | None = None, relu: bool = False
    ) -> Tensor:
        if torch.is_grad_enabled() and values.requires_grad:  # the gradient of the input, which ODIN needs
            return self._plain(values, added, relu)
        weight = self._weight_for(values)
        if weight is None:
            return self._plain(values, added, relu)
        inputs = (values, weight, self._bias, *self._geometry)
        convolution = torch.ops.mkldnn._convolution_pointwise
        if added is None:
            outputs: Tensor = convolution.default(*inputs, "relu" if relu else "none", [], None)
        else:
            outputs = convolution.binary(values, added, *inputs[1:], "add", 1.0, "relu" if relu else None, [], None)
        return outputs

    def _weight_for(self, values: Tensor) -> Tensor | None:
        """The layout depends on the size of the images, but not on their number. None if oneDNN has no kernel for such
        a convolution, for example with more padding than it supports."""
        size, weight = self._packed
        if size != values.shape[2:]:
            plain = self._plain_weight()
            try:
                weight = torch._C._nn.mkldnn_reorder_conv2d_weight(  # type: ignore[call-arg]
                    plain.to_mkldnn(), *self._geometry, list(values.shape)
                )
            except RuntimeError:
                weight = plain
            self._packed = values.shape[2:], weight  # in one step: several threads may use this layer
        return weight if weight.is_mkldnn else None

    def _plain_weight(self) -> Tensor:
        _, weight = self._packed
        return weight.to_dense() if weight.is_mkldnn else weight

    def _plain(self, values: Tensor, added: Tensor | None, relu: bool) -> Tensor:
        padding, stride, *_ = self._geometry
        outputs = F.conv2d(values, self._plain_weight(), self._bias, stride, padding)
        outputs = outputs if added is None else outputs + added
        return F.relu(outputs) if relu else outputs
