"""Files and names that come with a request."""

from __future__ import annotations

import asyncio
from io import BytesIO

import pytest
from starlette.datastructures import UploadFile

from clom.errors import DataError, UserError
from clom.photos.changes.names import clean_name
from clom.serve.images.decoder_pool import Decoders, Photo, Unreadable
from clom.serve.images.uploads import Upload, decode_all
from clom.serve.traffic.limits import Limits
from serve.running import coloured, png


def uploaded(name: str, content: bytes) -> Upload:
    return Upload(name, UploadFile(BytesIO(content)))


@pytest.mark.parametrize(
    ("text", "name"), [("  red  wine ", "red wine"), ("a\nb", "a b"), ("e\u0301", "\u00e9"), ("名前", "名前")]
)
def test_names_are_one_line_spelt_one_way(text: str, name: str) -> None:
    assert clean_name(text, "class") == name


@pytest.mark.parametrize(
    ("text", "problem"), [(" \n", "needs a name"), ("x" * 81, "at most 80 characters"), ("a\x00b", "cannot be shown")]
)
def test_names_that_cannot_be_used(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        clean_name(text, "class")


def test_a_file_that_is_too_large_is_not_read_on() -> None:
    with pytest.raises(DataError, match="too large: more than 1 MB"):
        asyncio.run(uploaded("big.png", b"x" * 1_000_001).read(1_000_000))


def test_each_file_is_an_image_or_a_reason() -> None:
    async def check() -> None:
        decoders = Decoders(count=1)
        uploads = [uploaded("red.png", png(coloured("red", 1)[0])), uploaded("text.png", b"hello")]
        good, bad = await decode_all(uploads, decoders, 8, Limits())
        await decoders.stop()
        assert isinstance(good, Photo)
        assert good.square.shape == (3, 8, 8)
        assert isinstance(bad, Unreadable)
        assert bad.file == "text.png"
        assert bad.reason

    asyncio.run(check())
