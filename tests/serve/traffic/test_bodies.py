"""Bodies that are too large, too slow, or too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from clom.serve.traffic.bodies import Bodies, Body
from clom.serve.traffic.limits import Limits

LIMITS = Limits(bytes_at_once=1000, stall_seconds=0.2, silent_seconds=0.05, least_bytes_per_second=100)


class Client:
    """Sends what it is told to."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    def send(self, size: int, more: bool = True) -> None:
        self.messages.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": more})


def opened(bodies: Bodies, most: int = 10_000) -> tuple[Client, Body]:
    client = Client()
    return client, bodies.open(client.messages.get, most)


async def status_of(reading: Awaitable[object]) -> int:
    with pytest.raises(HTTPException) as caught:
        await reading
    return caught.value.status_code


def run(check: Callable[[Bodies], Awaitable[None]], limits: Limits = LIMITS) -> None:
    async def main() -> None:
        await check(Bodies(limits))

    asyncio.run(main())


def test_a_silent_client_is_given_up() -> None:
    async def check(bodies: Bodies) -> None:
        client, body = opened(bodies)
        client.send(10)
        assert (await body.receive())["body"] == b"x" * 10
        assert await status_of(body.receive()) == 408

    run(check)


def test_a_slow_client_is_given_up() -> None:
    async def check(bodies: Bodies) -> None:
        client, body = opened(bodies)

        async def drip() -> None:
            while True:
                client.send(1)
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())

        async def read_all() -> None:
            while True:
                await body.receive()

        assert await status_of(asyncio.wait_for(read_all(), 5)) == 408
        dripping.cancel()

    run(check)


def test_after_the_body_nothing_is_hurried() -> None:
    """A response may take long, and its end of the connection is waited for meanwhile."""

    async def check(bodies: Bodies) -> None:
        client, body = opened(bodies)
        client.send(10, more=False)
        await body.receive()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(body.receive(), 3 * LIMITS.stall_seconds)

    run(check)


def test_a_body_that_is_too_large_is_refused() -> None:
    async def check(bodies: Bodies) -> None:
        client, body = opened(bodies, most=50)
        client.send(60, more=False)
        assert await status_of(body.receive()) == 413

    run(check)


def test_together_the_largest_stalled_one_has_to_go() -> None:
    async def check(bodies: Bodies) -> None:
        honest, honest_body = opened(bodies)
        stalled = [opened(bodies) for _ in range(3)]
        waiting = []
        for size, (client, body) in zip((200, 400, 300), stalled, strict=True):
            client.send(size)
            await body.receive()
            waiting.append(asyncio.create_task(body.receive()))
        await asyncio.sleep(2 * LIMITS.silent_seconds)
        honest.send(500)
        assert len((await honest_body.receive())["body"]) == 500
        await asyncio.sleep(0)
        assert await status_of(waiting[1]) == 503
        assert bodies.total == 1000
        for task in (waiting[0], waiting[2]):
            task.cancel()

    run(check, replace(LIMITS, stall_seconds=10))


def test_large_bodies_share_one_rate_and_small_ones_do_not_wait() -> None:
    async def check(bodies: Bodies) -> None:
        clock = asyncio.get_running_loop().time
        started = clock()

        async def large() -> float:
            client, body = opened(bodies)
            for number in range(4):
                client.send(100, more=number < 3)
                await body.receive()
            return clock() - started

        small, small_body = opened(bodies)
        sending = [asyncio.create_task(large()) for _ in range(2)]
        await asyncio.sleep(0.05)
        small.send(50, more=False)
        before = clock()
        await small_body.receive()
        assert clock() - before < 0.2
        assert max(await asyncio.gather(*sending)) > 0.5, "700 bytes beyond the first hundred, at 1000 a second"

    run(check, replace(LIMITS, bytes_per_second=1000, quick_bytes=100, stall_seconds=10))


def test_if_nobody_stalls_the_largest_has_to_go() -> None:
    async def check(bodies: Bodies) -> None:
        small, small_body = opened(bodies)
        large, large_body = opened(bodies)
        small.send(100)
        await small_body.receive()
        large.send(950)
        assert await status_of(large_body.receive()) == 503
        small.send(100, more=False)
        await small_body.receive()

    run(check)
