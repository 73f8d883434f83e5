"""What is noticed about photos before they are learned."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image, ImageFilter

from clom.data.decoding import decode
from clom.data.images import Images
from clom.photos.hints import Hint, copies, hints

SIDE = 160


def photo(seed: int, side: int = 320) -> Image.Image:
    """Random shapes, large and small, with sharp edges."""
    randomness = torch.Generator().manual_seed(seed)
    picture = torch.zeros(3, side, side)
    for cells in (4, 9, 40):
        coarse = torch.rand(3, cells, cells, generator=randomness)
        picture += torch.nn.functional.interpolate(coarse[None], (side, side), mode="nearest")[0]
    return Image.fromarray((picture / 3 * 255).to(torch.uint8).permute(1, 2, 0).numpy())


def square(image: Image.Image, quality: int | None = None) -> torch.Tensor:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality) if quality else image.save(file, "PNG")
    file.seek(0)
    return torch.from_numpy(decode(file, SIDE)).permute(2, 0, 1)


def noticed(pixels: list[torch.Tensor], labels: list[int], **options: object) -> dict[str, Hint]:
    images = Images(torch.stack(pixels), torch.tensor(labels))
    files = [f"{'ab'[label]}/{row}.jpg" for row, label in enumerate(labels)]
    return {hint.kind: hint for hint in hints(images, ("a", "b"), files, **options)}  # type: ignore[arg-type]


DIFFERENT = [square(photo(seed)) for seed in range(6)]


def test_good_photos_get_no_hint() -> None:
    assert noticed(DIFFERENT, [0, 0, 0, 1, 1, 1], sizes=[(SIDE, 2 * SIDE)] * 6) == {}


def test_eight_copies_of_one_photo_under_two_classes() -> None:
    """They used to give an accuracy of 100% without a word."""
    found = noticed([square(photo(1))] * 16, [0] * 8 + [1] * 8)
    assert list(found) == ["two classes", "copies"]
    assert found["two classes"].text.startswith("One photo is in two classes: a/0.jpg and b/8.jpg.")
    assert found["two classes"].photos == tuple(range(16))
    assert found["copies"].text.startswith("14 photos are copies of another: a/1.jpg of a/0.jpg, b/9.jpg of b/8.jpg.")


def test_copies_are_found_at_another_size_and_quality() -> None:
    small = square(photo(2).resize((200, 200)), quality=40)
    (group,) = copies(torch.stack([*DIFFERENT, small]))
    assert group == [2, 6]
    assert set(noticed([*DIFFERENT, small], [0, 0, 0, 1, 1, 1, 0])) == {"copies"}


def test_more_photos_than_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clom.photos.hints._ROWS", 2)
    assert copies(torch.stack([*DIFFERENT, DIFFERENT[0], DIFFERENT[5], DIFFERENT[0]])) == [[0, 6, 8], [5, 7]]


def test_copies_of_copies_are_one_group() -> None:
    """Each differs from the next by little, the first from the last by more than copies do."""
    steps = [(DIFFERENT[0].float() * (1 + 0.03 * n)).clamp(0, 255).to(torch.uint8) for n in range(9)]
    assert copies(torch.stack([steps[0], steps[-1]])) == []
    assert copies(torch.stack(steps)) == [list(range(9))]


def test_blurred_photos_and_photos_of_nothing() -> None:
    blurred = square(photo(7).filter(ImageFilter.GaussianBlur(12)))
    nothing = torch.full((3, SIDE, SIDE), 90, dtype=torch.uint8)
    found = noticed([*DIFFERENT, blurred, nothing], [0, 0, 0, 1, 1, 1, 0, 1])
    assert list(found) == ["blurred"]
    assert found["blurred"].photos == (6, 7)
    assert "2 photos are blurred or show hardly anything: a/6.jpg, b/7.jpg." in found["blurred"].text


def test_a_sharp_subject_before_a_blurred_background_is_sharp() -> None:
    picture = photo(7).filter(ImageFilter.GaussianBlur(12))
    picture.paste(photo(8).crop((120, 120, 200, 200)), (120, 120))
    assert noticed([*DIFFERENT, square(picture)], [0, 0, 0, 1, 1, 1, 0]) == {}


def test_tiny_photos() -> None:
    found = noticed(DIFFERENT, [0, 0, 0, 1, 1, 1], sizes=[(SIDE, SIDE)] * 5 + [(400, SIDE - 1)])
    assert found["tiny"].text.endswith("than the 160 x 160 pixels that the model sees: b/5.jpg (400 x 159).")
    assert found["tiny"].photos == (5,)


@pytest.mark.parametrize(("few", "expected"), [(2, []), (1, ["unbalanced"])])
def test_unbalanced_classes(few: int, expected: list[str]) -> None:
    pixels = [square(photo(seed)) for seed in range(few + 5)]
    found = noticed(pixels, [0] * few + [1] * 5)
    assert list(found) == expected
    if expected:
        assert found["unbalanced"].text.startswith("'b' has 5 photos, 'a' only 1.")


def test_photos_for_a_single_class() -> None:
    images = Images(torch.stack(DIFFERENT[:1]), torch.tensor([0]))
    assert hints(images, ("a",), ["a/0.jpg"]) == ()
