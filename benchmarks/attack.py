"""Latency of honest clients while others connect and say nothing, or stop in the middle of an upload.

python -m benchmarks.attack [--seconds 60] [--connections 16] [--out results] [--quick]

`clom serve` on loopback; honest clients in this process, attackers in another one. Quiet rounds and rounds under attack
alternate, so that other load affects both, and their latencies are compared. The attackers come from the same address
as the honest clients, which is the worst case for limits per address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.load import ATTACK, HEAD, MODELS, Exam, Streams, Tally, ask, prepare, server
from clom import machine
from clom.data.example_photos import write_example_photos
from clom.files import write_atomically

ROUNDS = 6
"""Of each kind."""
HALF_OPEN, STALLED = 505, 26
"""Connections that once locked everybody out: with half a header or none, and with half an upload."""
UPLOAD = 60_000_000
MOST = 2.0
"""How many times as long the slowest hundredth may take under attack."""
_THREADS = 4
PAUSES = (0.5,)
"""Seconds from question to question of a client."""
_ZEROS = bytes(UPLOAD)
BEGIN, END = ATTACK, "<!-- attack:end -->"


# ------------------------------------------------------------------------------------------------------------ attackers


class Attackers:
    """All attacking connections. Those that the server ends are made again at once."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.place, self.active, self.made = place, threading.Event(), Counter[str]()
        shares = [range(start, HALF_OPEN, _THREADS) for start in range(_THREADS)]
        work = [partial(self._keep_half_open, share) for share in shares] + [self._keep_stalled] * STALLED
        for each in work:
            threading.Thread(target=each, daemon=True).start()

    def _keep_half_open(self, share: range) -> None:
        draw = random.Random(share.start)
        opened: dict[int, socket.socket | None] = dict.fromkeys(share)
        while True:
            if not self.active.is_set():
                _close(*opened.values())
                opened = dict.fromkeys(share)
                self.active.wait()
            for number, connection in opened.items():
                if self.active.is_set() and (connection is None or _is_closed(connection)):
                    opened[number] = _half_open(self.place, draw)
                    self.made["half-open"] += 1
            time.sleep(0.05)

    def _keep_stalled(self) -> None:
        while self.active.wait():
            connection = _stalled(self.place)
            self.made["stalled"] += 1
            while self.active.is_set() and connection is not None and not _is_closed(connection):
                time.sleep(0.05)
            _close(connection)


def attack(place: tuple[str, int], control: Connection) -> None:
    """Attack when told to, until told to end; every pause is answered with how many connections were made so far."""
    attackers = Attackers(place)
    while (word := control.recv()) != "end":
        if word == "go":
            attackers.active.set()
        else:
            attackers.active.clear()
            control.send(dict(attackers.made))


def _half_open(place: tuple[str, int], draw: random.Random) -> socket.socket | None:
    head = HEAD % 50_000
    return _connected(place, head[: draw.choice((0, 0, 5, 40, len(head)))])


def _stalled(place: tuple[str, int]) -> socket.socket | None:
    head = (
        f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: {UPLOAD + 1}\r\n\r\n"
    )
    return _connected(place, head.encode() + bytes(UPLOAD))


def _connected(place: tuple[str, int], *content: bytes) -> socket.socket | None:
    with suppress(OSError):
        connection = socket.create_connection(place, 5)
        with suppress(OSError):
            for part in content:
                connection.sendall(part)
        connection.setblocking(False)
        return connection
    return None


def _close(*connections: socket.socket | None) -> None:
    for connection in connections:
        if connection is not None:
            connection.close()


def _is_closed(connection: socket.socket) -> bool:
    try:
        closed = connection.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        closed = True
    if closed:
        connection.close()
    return closed


# -------------------------------------------------------------------------------------------------------------- clients


async def honest_client(
    place: tuple[str, int], pictures: Sequence[bytes], until: float, pause: float, at: int, fresh: bool
) -> Tally:
    """Ask again and again, with a pause; on one connection, or on a new one for every question."""
    tally = Tally()
    streams: Streams | None = None
    await asyncio.sleep(pause * random.Random(at).random())
    while time.perf_counter() < until:
        question, at = at % len(pictures), at + 1
        picture, started = pictures[question], time.perf_counter()
        try:
            async with asyncio.timeout(30):
                streams = streams or await asyncio.open_connection(*place)
                tally.note(question, started, *await ask(streams, picture))
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as problem:
            print(
                f"failed after {time.perf_counter() - started:.2f} s, new connection: {fresh}: {problem!r}", flush=True
            )
            tally.failed += 1
            if streams is not None:
                streams[1].close()
            streams = None
        if fresh and streams is not None:
            streams[1].close()
            streams = None
        await asyncio.sleep(max(0.0, pause - (time.perf_counter() - started)))
    if streams is not None:
        streams[1].close()
    return tally


async def ask_for(place: tuple[str, int], pictures: Sequence[bytes], n: int, seconds: float, pause: float) -> Tally:
    started, total = time.perf_counter(), Tally()
    clients = (honest_client(place, pictures, started + seconds, pause, 7 * at, at % 2 == 1) for at in range(n))
    for part in await asyncio.gather(*clients):
        total.add(part)
    total.seconds = time.perf_counter() - started
    return total


# --------------------------------------------------------------------------------------------------------------- rounds


def measure(path: Path, exam: Exam, pause: float, options: argparse.Namespace) -> dict[str, Any]:
    quiet, attacked, ratios, memory, made = Tally(), Tally(), list[float](), list[float](), dict[str, int]()
    seconds = options.seconds / ROUNDS
    with server(path, options.threads) as (client, process):
        host, _, port = client.url.removeprefix("http://").partition(":")
        place = host, int(port)
        control, other = multiprocessing.get_context("spawn").Pipe()
        attackers = multiprocessing.get_context("spawn").Process(target=attack, args=(place, other), daemon=True)
        attackers.start()
        asyncio.run(ask_for(place, exam.pictures, options.connections, 2.0, pause))  # warm
        for number in range(ROUNDS):
            calm = asyncio.run(ask_for(place, exam.pictures, options.connections, seconds, pause))
            control.send("go")
            time.sleep(2.0)
            stormy = asyncio.run(ask_for(place, exam.pictures, options.connections, seconds, pause))
            memory.append(resident(process))
            control.send("pause")
            made = control.recv()
            quiet.add(calm)
            attacked.add(stormy)
            ratios.append(p99(stormy) / p99(calm) if calm.latencies and stormy.latencies else float("inf"))
            print(f"round {number + 1}: p99 {ratios[-1]:.2f}x, failed {calm.failed} and {stormy.failed}", flush=True)
        control.send("end")
        attackers.join(10)
        time.sleep(6)
        memory.append(resident(process))
    return {
        "about": MODELS[options.model][0],
        "connections": options.connections,
        "pause_seconds": pause,
        "half_open": HALF_OPEN,
        "stalled_uploads": STALLED,
        "half_open_made": made["half-open"],
        "stalled_made": made["stalled"],
        "seconds": options.seconds,
        "quiet": quiet.to_json(exam),
        "attacked": attacked.to_json(exam),
        "p99_ratio": round(p99(attacked) / p99(quiet), 2),
        "p99_ratio_by_round": [round(ratio, 2) for ratio in ratios],
        "most_memory_mb": round(max(memory)),
        "memory_afterwards_mb": round(memory[-1]),
    }


def p99(tally: Tally) -> float:
    return statistics.quantiles(tally.latencies, n=100)[98]


def resident(process: int) -> float:
    """Megabytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def page(found: Sequence[dict[str, Any]], about: dict[str, Any], load: Sequence[float]) -> str:
    first = found[0]
    lines = [
        BEGIN,
        "## Under attack",
        "",
        f"`python -m benchmarks.attack`: {first['connections']} honest clients ask, half of them on a new connection "
        f"each time, for {first['seconds']:.0f} s in quiet and as long while {first['half_open']} connections stay "
        f"half-open and {first['stalled_uploads']} uploads of {UPLOAD // 10**6} MB stall. Those that the server ends "
        "are made again at once; they come from the address of the honest clients. Rounds of both kinds take turns, "
        f"since other work runs on the machine. Model: {first['about']}.",
        "",
        f"{about['processor']}, {about['cores']} cores; load average {load[0]:.1f} before and {load[1]:.1f} after.",
        "",
        "| a client asks | | answers | p50 ms | p99 ms | wrong | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        asks = f"every {each['pause_seconds']:g} s" if each["pause_seconds"] else "at once again"
        for name in ("quiet", "attacked"):
            figures = [str(each[name][key]) for key in ("requests", "p50_ms", "p99_ms", "wrong", "failed")]
            lines.append(f"| {' | '.join([asks, name, *figures])} |")
    lines.append("")
    for each in found:
        asks = f"every {each['pause_seconds']:g} s" if each["pause_seconds"] else "at once again"
        rounds = ", ".join(f"{ratio:g}" for ratio in each["p99_ratio_by_round"])
        lines.append(
            f"Asking {asks}: p99 under attack is **{each['p99_ratio']}x** that in quiet (by round: {rounds}); the aim "
            f"is {MOST:g}x. {each['half_open_made']} half-open connections and {each['stalled_made']} stalled uploads "
            "were made. The server took at most "
            f"{each['most_memory_mb']} MB, and {each['memory_afterwards_mb']} MB afterwards.  "
        )
    return "\n".join([*lines, END, ""])


def write(folder: Path, found: Sequence[dict[str, Any]], text: str) -> None:
    """Add the figures to those of `benchmarks.load`, in place of earlier ones."""
    figures = json.loads((folder / "serving.json").read_text()) if (folder / "serving.json").exists() else {}
    write_atomically(folder / "serving.json", json.dumps(figures | {"attack": found}, indent=2).encode())
    path = folder / "serving.md"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    before, _, rest = before.partition(BEGIN)
    write_atomically(path, (before.rstrip("\n") + "\n\n" + text + rest.partition(END)[2].lstrip("\n")).encode())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="in quiet, and as long under attack")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--model", default="clom, 32 px", choices=list(MODELS))
    parser.add_argument("--threads", type=int, default=machine.cores(), help="for the server")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--quick", action="store_true", help="six seconds, as a smoke test")
    options = parser.parse_args(arguments)
    options.seconds = 6.0 if options.quick else options.seconds
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        photos, path = Path(place) / "photos", Path(place) / "model.safetensors"
        write_example_photos(photos, per_class=10, per_class_new=4)
        exam = prepare(MODELS[options.model][1], photos, path)
        found = [measure(path, exam, pause, options) for pause in PAUSES]
    print(json.dumps(found, indent=2))
    write(options.out, found, page(found, machine.describe(), (before, os.getloadavg()[0])))


if __name__ == "__main__":
    main()
