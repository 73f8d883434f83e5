"""Metrics in the Prometheus text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = {"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"}
_PICTURES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        lines, below = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*lines, f"{name}_sum {self.total:.6f}", f"{name}_count {below}"]


class Metrics:
    """Counters and histograms since the start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds = Histogram(_SECONDS)
        self.batches = Histogram(_PICTURES)
        self.answers: Counter[str] = Counter()

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """All metrics, with gauges as name -> (description, value)."""
        out = _about("clom_requests_total", "counter", "Requests by route and status.")
        for (method, route, status), count in sorted(self.requests.items()):
            out.append(f'clom_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        out += _about("clom_answer_seconds", "histogram", "Time from a question to its answer.")
        out += self.seconds.lines("clom_answer_seconds")
        out += _about("clom_batch_pictures", "histogram", "Pictures that were computed together.")
        out += self.batches.lines("clom_batch_pictures")
        out += _about("clom_answers_total", "counter", "Pictures by what was said of them.")
        out += [f'clom_answers_total{{answer="{kind}"}} {count}' for kind, count in sorted(self.answers.items())]
        for name, (about, value) in gauges.items():
            out += [*_about(name, "gauge", about), f"{name} {value:g}"]
        return "\n".join(out) + "\n"


class Counting:
    """Middleware: counts responses by route, never by the raw path."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self.metrics.requests[method, route, message["status"]] += 1
            await send(message)

        await self.app(scope, receive, sending if scope["type"] == "http" else send)


def _about(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
