"""`clom export`: a model as an ONNX or torch.export graph."""

from __future__ import annotations

from pathlib import Path

from clom.cli.console import Console
from clom.cli.options import Device, ModelFile


def export_command(model: ModelFile, out: Path, *, task: str | None = None, device: Device = "cpu") -> None:
    """Export a model to a file that runs without clom: images in, class scores and an OOD score out.

    Parameters
    ----------
    model
        The model file.
    out
        The file to write: .onnx for onnxruntime, .pt2 for torch.export.load.
    task
        Export only this task; by default all of them.
    device
        Where the model computes the scores that the graph is compared with: cpu (default), auto, cuda, cuda:0, ... or
        mps. The file itself runs on any device.
    """
    from clom import machine
    from clom.export.onnx import check_target, export_model
    from clom.storage.model_file import load_model

    check_target(out)
    chosen = machine.choose_device(device)
    console = Console()
    with console.status("Exporting and checking the graph; this takes a few seconds ..."):
        done = export_model(out, load_model(model), task, chosen)
    console.print(
        f"{done.path}: {len(done.class_names)} classes, {done.n_bytes / 1e6:.2f} MB; its scores differ from the "
        f"model's by at most {done.largest_difference:.0e}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    console.print(
        "Input 'images': uint8 [n, channels, height, width]. Outputs 'scores' [n, classes] and 'belonging' [n]; class "
        "names, tasks and thresholds are in the file's metadata.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
