"""Decoders that fail, run out of memory or take too long."""

from __future__ import annotations

import asyncio
from io import BytesIO

import pytest
from PIL import Image

from clom.errors import DataError
from clom.serve.images.decoder_pool import Decoders, child_environment
from serve.running import coloured, png


def test_children_do_not_inherit_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOM_TOKEN", "secret")
    assert "CLOM_TOKEN" not in child_environment()


def test_a_decoder_that_runs_out_of_memory_is_survived() -> None:
    async def check() -> None:
        decoders = Decoders(count=1, memory=30_000_000)
        file = BytesIO()
        Image.new("RGB", (5000, 5000)).save(file, "PNG", compress_level=1)
        with pytest.raises(DataError, match="memory"):
            await decoders.decode(file.getvalue(), 16)
        assert (await decoders.decode(png(coloured("red", 1)[0]), 16)).square.shape == (3, 16, 16)
        await decoders.stop()

    asyncio.run(check())


def test_a_decoder_that_takes_too_long_is_replaced() -> None:
    async def check() -> None:
        decoders = Decoders(count=1, seconds=0.01)  # it cannot even start in that time
        with pytest.raises(DataError, match="longer than"):
            await decoders.decode(png(coloured("red", 1)[0]), 16)
        decoders._seconds = 30
        assert (await decoders.decode(png(coloured("red", 1)[0]), 16)).square.shape == (3, 16, 16)
        await decoders.stop()

    asyncio.run(check())


def test_a_question_that_is_given_up_does_not_confuse_the_next() -> None:
    async def check() -> None:
        decoders = Decoders(count=1)
        red, blue = (png(coloured(name, 1)[0]) for name in ("red", "blue"))
        first = asyncio.create_task(decoders.decode(red, 16))
        await asyncio.sleep(0.05)
        first.cancel()
        square, size = await decoders.decode(blue, 8)
        assert size == (32, 32)
        assert square.shape == (3, 8, 8)
        assert square[2].mean() > 150
        await decoders.stop()

    asyncio.run(check())
