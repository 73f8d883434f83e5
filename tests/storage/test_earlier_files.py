"""Model files of an earlier version load, predict the same, and can be trained further."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from clom.data.stream import Stream, Task
from clom.errors import UserError
from clom.methods.families.base import Method
from clom.photos.predict import Predictor
from clom.photos.teach import teach
from clom.photos.verify import verify
from clom.storage.model_file import VERSION, load_model, save_model
from clom.storage.tensors import read_tensors, to_bytes
from photos.pictures import coloured, pictures

FOLDER = Path(__file__).parent / "earlier"
FILES = sorted(FOLDER.glob("*.safetensors"))
PHOTOS = [path for path in FILES if path.stem.startswith("photos-")]


@pytest.fixture(scope="module")
def outputs() -> dict[str, NDArray[np.generic]]:
    found: dict[str, NDArray[np.generic]] = {}
    for path in FOLDER.glob("answers*.npz"):
        with np.load(path) as file:
            found |= dict(file)
    return found


@pytest.fixture(scope="module")
def digit_pixels(tiny_stream: Stream) -> Tensor:
    return torch.cat([test.pixels for test in tiny_stream.tests])[::2]


@pytest.fixture(scope="module")
def photo_pixels() -> Tensor:
    return torch.cat([coloured(name, 3, seed=9) for name in ("red", "green", "blue", "grey", "violet")])


def same(now: Tensor, then: NDArray[np.generic]) -> None:
    """Bit-identical on the processor they were written on; others round differently, sums in proportion to their
    largest terms."""
    torch.testing.assert_close(now, torch.from_numpy(then), rtol=1e-5, atol=1e-5 * float(np.abs(then).max()))


def third_task(method: Method, tiny_stream: Stream) -> Task:
    if method.image_shape == (1, 8, 8):
        return tiny_stream[2]
    learned = pictures("violet", "red", count=10).images
    return Task("more", ("violet", "orange"), learned, learned)


def test_no_file_is_missing() -> None:
    assert (len(FILES), len(PHOTOS)) == (26, 4)


def test_files_of_every_version_are_stored() -> None:
    """A new version needs files of its own, written by the program that introduced it."""
    written = {read_tensors(path)[1]["version"] for path in FILES}
    major, minor = VERSION
    assert {version if "." in version else f"{version}.0" for version in written} == {
        f"{major}.{number}" for number in range(minor + 1)
    }
    page = (Path(__file__).parents[2] / "docs" / "model-files.md").read_text(encoding="utf-8")
    assert f"\n| {major}.{minor} | " in page, "describe the version in docs/model-files.md"


def test_files_that_are_saved_again_have_the_current_version(tmp_path: Path) -> None:
    save_model(tmp_path / "again.safetensors", load_model(FOLDER / "hat.safetensors"))
    assert read_tensors(tmp_path / "again.safetensors")[1]["version"] == ".".join(map(str, VERSION))


@pytest.mark.parametrize(
    ("version", "is_read"), [("1", True), ("1.0", True), ("1.1", True), ("1.2", False), ("2", False)]
)
def test_later_versions_are_refused(tmp_path: Path, version: str, is_read: bool) -> None:
    tensors, header = read_tensors(FOLDER / "hat.safetensors")
    path = tmp_path / "model"
    path.write_bytes(to_bytes(tensors, header | {"version": version}))
    if is_read:
        assert load_model(path).tasks
    else:
        with pytest.raises(UserError, match=f"has format version {version}; this program reads up to 1.1"):
            load_model(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_outputs_are_unchanged(
    path: Path, outputs: dict[str, NDArray[np.generic]], digit_pixels: Tensor, photo_pixels: Tensor
) -> None:
    method = load_model(path)
    blocks = method.blocks(photo_pixels if path in PHOTOS else digit_pixels)
    assert len(blocks) == len(method.tasks) == 2
    for number, block in enumerate(blocks):
        same(block, outputs[f"{path.stem}/block {number}"])
    calibrations = {name: calibration for name, calibration in method.calibrations().items() if name != "none"}
    assert {f"{path.stem}/calibration {name}" for name in calibrations} == {
        key for key in outputs if key.startswith(f"{path.stem}/calibration ")
    }
    for name, calibration in calibrations.items():
        same(torch.cat(calibration(blocks), 1), outputs[f"{path.stem}/calibration {name}"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_tensor_is_lost_or_renamed(path: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "again.safetensors", load_model(path))
    then, now = read_tensors(path)[0], read_tensors(tmp_path / "again.safetensors")[0]
    assert list(then) == list(now)
    assert all(torch.equal(then[name], now[name]) for name in then)


@pytest.mark.filterwarnings("ignore:.*(closed every unit|No channel is free).*")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_learning_another_task(path: Path, tiny_stream: Stream, digit_pixels: Tensor, photo_pixels: Tensor) -> None:
    method = load_model(path)
    pixels = photo_pixels if path in PHOTOS else digit_pixels
    before = method.blocks(pixels)
    method.learn(third_task(method, tiny_stream))
    after = method.blocks(pixels)
    assert len(after) == 3
    assert all(bool(torch.isfinite(block).all()) for block in after)
    if method.exact_memory:
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=False))


@pytest.mark.parametrize("path", PHOTOS, ids=lambda path: path.stem)
def test_photo_models_keep_their_records(
    path: Path, outputs: dict[str, NDArray[np.generic]], photo_pixels: Tensor
) -> None:
    predicted = Predictor(load_model(path))(photo_pixels)
    for name in ("confidence", "familiarity"):
        values = [answer.best.confidence if name == "confidence" else answer.familiarity for answer in predicted]
        same(torch.tensor(values, dtype=torch.float64), outputs[f"{path.stem}/{name}"])
    assert [answer.unknown for answer in predicted] == outputs[f"{path.stem}/unknown"].tolist()
    if path.stem != "photos-slda":  # whose old predictions change with every task
        assert [check.verdict for check in verify(path)] == ["identical", "identical"]


def test_photo_models_can_be_taught_another_task(tmp_path: Path) -> None:
    path = tmp_path / "my.model"
    path.write_bytes((FOLDER / "photos-clom.safetensors").read_bytes())
    lesson = teach(path, lambda size: pictures("violet", "orange", count=6), "more")
    assert (lesson.n_tasks, lesson.n_classes) == (3, 6)
    assert [check.verdict for check in verify(path, FOLDER / "photos-clom.safetensors")] == [
        "identical",
        "identical",
        "new",
    ]
