"""A person's own ONNX file as a frozen backbone: images in [0, 1] to features.

The file's content is a buffer of the module and is saved with the model, so that a model file needs nothing else. It is
a graph of standard operators, run by onnxruntime on the CPU; custom operators and weights in further files are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from clom.errors import UserError, shorten
from clom.extras import require
from clom.nets.net_settings import NetSettings
from clom.settings import Positive


class OnnxSettings(NetSettings):
    """What must be known of the file before it is read from a model."""

    kind: Literal["onnx"] = "onnx"
    n_bytes: Positive
    n_features: Positive


class OnnxFile(nn.Module):
    """Runs the graph. The session is made when it is first needed, and never copied or saved."""

    content: Tensor

    def __init__(self, settings: OnnxSettings) -> None:
        super().__init__()
        self.n_features = settings.n_features
        self.register_buffer("content", torch.zeros(settings.n_bytes, dtype=torch.uint8))
        self._session: Any = None

    def forward(self, images: Tensor) -> Tensor:
        if not len(images):
            return images.new_zeros(0, self.n_features)
        if self._session is None:
            self._session = _session(self.content.cpu().numpy().tobytes(), "the model's backbone")
        features = run_graph(self._session, images, "the model's backbone")
        if features.shape[1] != self.n_features:
            raise UserError(f"The model's backbone returns {features.shape[1]} features, not {self.n_features}.")
        return features

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def _load_from_state_dict(self, *args: Any) -> None:
        self._session = None
        super()._load_from_state_dict(*args)


def read_onnx(path: Path, image_size: int) -> tuple[OnnxSettings, Tensor]:
    """The settings and the content of a file, after trying it on two black images."""
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    content = path.read_bytes()
    black = torch.zeros(2, 3, image_size, image_size, device="cpu")
    features = run_graph(_session(content, str(path)), black, str(path))
    settings = OnnxSettings(n_bytes=len(content), n_features=features.shape[1])
    return settings, torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _session(content: bytes, who: str) -> Any:
    require("export", "An ONNX backbone")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # its errors are raised, too
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # onnxruntime has its own exceptions
        raise UserError(f"{who} is not an ONNX file that can be run: {_line(problem)}.") from problem


@torch.no_grad()
def run_graph(session: Any, images: Tensor, who: str) -> Tensor:
    """Features of images `[n, 3, h, w]`, in batches of the size that the graph demands."""
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise UserError(f"{who} has {len(inputs)} inputs; a backbone has one: images [n, 3, height, width] in [0, 1].")
    fixed = inputs[0].shape[0] if inputs[0].shape else None
    batch = fixed if isinstance(fixed, int) and fixed > 0 else max(1, len(images))
    values = images.detach().cpu().contiguous().numpy().astype(np.float32)
    parts = []
    for start in range(0, len(values), batch):
        part = values[start : start + batch]
        filled = np.concatenate([part, np.zeros((batch - len(part), *part.shape[1:]), np.float32)])
        try:
            (features, *_) = session.run(None, {inputs[0].name: filled})
        except Exception as problem:
            side = images.shape[-1]
            raise UserError(f"{who} does not run on images of 3 x {side} x {side}: {_line(problem)}.") from problem
        if features.ndim != 2 or len(features) != batch:
            raise UserError(
                f"{who} must return features [images, features]; for {batch} images it returned {features.shape}. "
                "End the graph with global pooling, so that it returns a vector for every image."
            )
        parts.append(torch.from_numpy(features[: len(part)].astype(np.float32)).to(images.device))
    return torch.cat(parts)


def _line(problem: Exception) -> str:
    return shorten(" ".join(str(problem).split()), 200).rstrip(".")
