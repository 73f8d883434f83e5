"""Counts and times as Prometheus reads them."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from clom.serve.metrics import Counting, Histogram, Metrics


def test_a_histogram_counts_everything_up_to_each_bound() -> None:
    histogram = Histogram((1, 5))
    for value in (0.5, 1, 3, 100):
        histogram.observe(value)
    assert histogram.lines("x") == [
        'x_bucket{le="1"} 2',
        'x_bucket{le="5"} 3',
        'x_bucket{le="+Inf"} 4',
        "x_sum 104.500000",
        "x_count 4",
    ]


def test_every_metric_is_described_once() -> None:
    metrics = Metrics()
    metrics.answers["known"] += 2
    lines = metrics.text({"clom_tasks": ("Tasks learned.", 3)}).splitlines()
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(described) == len(set(described)) == 5
    assert 'clom_answers_total{answer="known"} 2' in lines
    assert "clom_tasks 3" in lines
    assert {line.split("{")[0].split()[0].removesuffix("_bucket") for line in lines if line[0] != "#"} >= {
        "clom_answer_seconds",
        "clom_batch_pictures",
    }


async def answered(app: ASGIApp, method: str, path: str) -> bytes:
    """What the application sends for one request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return b"".join(message.get("body", b"") for message in sent)


def test_requests_are_counted_by_route_and_never_by_what_was_typed() -> None:
    async def thing(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.path_params["name"])

    metrics = Metrics()
    app = Counting(Starlette(routes=[Route("/things/{name}", thing)]), metrics)
    assert asyncio.run(answered(app, "GET", "/things/secret")) == b"secret"
    asyncio.run(answered(app, "GET", "/nowhere/secret"))
    asyncio.run(answered(app, "BREW", "/things/secret"))
    assert "secret" not in metrics.text({})
    assert sum(metrics.requests.values()) == 3
    assert {(method, status) for method, _, status in metrics.requests} == {("GET", 200), ("GET", 404), ("other", 405)}
