"""Throughput of concurrent requests to a server during a lesson, compared with one request at a time.

python -m benchmarks.load [--seconds 60] [--connections 16] [--out results] [--quick]

`clom serve` on loopback, clients in this process. Rounds of one connection and of many alternate, so that other load
affects both. Every answer is checked against the model version it names: the one before the lesson or the one after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from clom import machine
from clom.data.decoding import decode
from clom.data.example_photos import write_example_photos
from clom.data.folders import read_folder
from clom.files import write_atomically
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import Method
from clom.nets import ResNet18Settings
from clom.photos.predict import Answer
from clom.photos.presets import new_method
from clom.photos.teach import learn_pictures
from clom.serve.answers.active_model import load_active_model
from clom.serve.client import Client
from clom.storage.model_file import save_model

ROUNDS = 3
SAME = 1e-3  # rounding depends on the batch size
LEAST_GAIN = 2.0
ATTACK = "<!-- attack:begin -->"
"""Where the part of `benchmarks.attack` begins in serving.md; it stays when this one is measured again."""
HEAD = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def small() -> Method:
    """Trained from scratch at 32 x 32: mostly measures the overhead of serving."""
    learning = {"plan": {"epochs": 2, "batch": 16}, "head": {"views": 1}}
    settings = ClomSettings.model_validate({"memory_per_class": 2, "learning": learning})
    return Clom(ResNet18Settings(width=8), settings, (3, 32, 32))


MODELS: dict[str, tuple[str, Callable[[], Method]]] = {
    "clom, 32 px": ("CLOM from scratch, ResNet-18 of width 8, pictures of 32 x 32, two tasks", small),
    "ncm, 160 px": ("nearest class mean on EfficientNet-Lite0, 160 x 160, two tasks", lambda: new_method("ncm")),
    "clom, 160 px": (
        "CLOM with adapters on EfficientNet-Lite0, 160 x 160, two tasks",
        lambda: new_method("clom"),
    ),
    "experts, 160 px": ("the default for photos: experts on EfficientNet-Lite0, 160 x 160, two tasks", new_method),
}


@dataclass
class Tally:
    """The outcome of many requests."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    told: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    """Answers with the request and model version of each."""
    failed: int = 0

    def add(self, other: Tally) -> None:
        self.seconds += other.seconds
        self.latencies += other.latencies
        self.told += other.told
        self.failed += other.failed

    def note(self, question: int, started: float, head: bytes, body: bytes) -> None:
        """An answer that has just arrived."""
        self.latencies.append(time.perf_counter() - started)
        if b" 200 " not in head[:16]:
            self.failed += 1
        else:
            said = json.loads(body)
            self.told.append((said["model"], question, said["answers"][0]["guesses"][0]))

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def to_json(self, exam: Exam) -> dict[str, Any]:
        points = statistics.quantiles(self.latencies, n=100) if len(self.latencies) > 1 else [0.0] * 99
        return {
            "requests": len(self.latencies),
            "per_second": round(self.per_second, 1),
            "p50_ms": round(1000 * points[49], 1),
            "p99_ms": round(1000 * points[98], 1),
            "wrong": sum(not exam.is_right(*each) for each in self.told),
            "failed": self.failed,
        }


@dataclass
class Exam:
    """Encoded pictures, and the expected answers of each model version."""

    pictures: list[bytes]
    pixels: Tensor
    expected: dict[str, list[Answer]] = field(default_factory=dict)

    def add_model(self, path: Path) -> None:
        active = load_active_model(path, torch.device("cpu"))
        assert active.predictor is not None
        self.expected[active.version] = [active.predictor(image[None], top=3)[0] for image in self.pixels]

    def is_right(self, model: str, question: int, told: dict[str, Any]) -> bool:
        if model not in self.expected:
            return False
        best = self.expected[model][question].best
        return bool(told["class_name"] == best.class_name and abs(told["confidence"] - best.confidence) < SAME)


# -------------------------------------------------------------------------------------------------------------- clients


async def ask(streams: Streams, picture: bytes) -> tuple[bytes, bytes]:
    """The head and the body of the answer."""
    reader, writer = streams
    writer.write(HEAD % len(picture) + picture)
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head, await reader.readexactly(length)


async def one_client(place: tuple[str, int], pictures: Sequence[bytes], until: float, at: int) -> Tally:
    """Send requests repeatedly on one persistent connection."""
    tally = Tally()
    reader, writer = await asyncio.open_connection(*place)
    while time.perf_counter() < until:
        question = at % len(pictures)
        picture = pictures[question]
        at += 1
        started = time.perf_counter()
        tally.note(question, started, *await ask((reader, writer), picture))
    writer.close()
    return tally


async def ask_for(place: tuple[str, int], pictures: Sequence[bytes], n: int, seconds: float) -> Tally:
    started = time.perf_counter()
    parts = await asyncio.gather(*(one_client(place, pictures, started + seconds, 7 * at) for at in range(n)))
    total = Tally()
    for part in parts:
        total.add(part)
    total.seconds = time.perf_counter() - started
    return total


# --------------------------------------------------------------------------------------------------------------- server


def prepare(make: Callable[[], Method], photos: Path, path: Path) -> Exam:
    """Save a trained model whose next lesson lasts for hours where possible; return other pictures to classify."""
    method = make()
    size = method.image_shape[-1]
    for task in ("shapes", "patterns"):
        learn_pictures(method, read_folder(photos / task, size), task)
    save_model(path, _endless(method))
    pictures = []
    for file in sorted((photos / "new").rglob("*.png")):
        small = BytesIO()
        with Image.open(file) as image:
            image.save(small, "PNG")
        pictures.append(small.getvalue())
    pixels = torch.stack([torch.from_numpy(decode(BytesIO(each), size)) for each in pictures])
    exam = Exam(pictures, pixels.permute(0, 3, 1, 2).contiguous())
    exam.add_model(path)
    return exam


def _endless(method: Method) -> Method:
    if isinstance(method, Clom):
        plan = method.settings.learning.plan.model_copy(update={"epochs": 100_000})  # type: ignore[attr-defined]
        learning = method.settings.learning.model_copy(update={"plan": plan})  # type: ignore[attr-defined]
        method.settings = method.settings.model_copy(update={"learning": learning})
    return method


@contextmanager
def server(path: Path, threads: int) -> Iterator[tuple[Client, int]]:
    """A client and the process id."""
    command = [sys.executable, "-m", "clom", "serve", str(path), "--port", "0", "--threads", str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = next(line for line in process.stdout if "http://" in line).split()[1]
        client = Client(address)
        until = time.monotonic() + 60
        while True:
            try:
                client.model()
                break
            except Exception:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield client, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stdout.close()


def measure(name: str, photos: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    path = folder / f"{name.replace(', ', '-').replace(' ', '')}.safetensors"
    exam = prepare(MODELS[name][1], photos, path)
    one, many = Tally(), Tally()
    with server(path, options.threads) as (client, _):
        host, _, port = client.url.removeprefix("http://").partition(":")
        place = host, int(port)
        stars = sorted((photos / "shapes" / "stars").iterdir())
        lesson = client.teach({"night": stars[::2], "day": stars[1::2]}, "load")
        asyncio.run(ask_for(place, exam.pictures, options.connections, 2.0))  # warm
        teaching, batches = list[str](), list[float]()
        for _ in range(ROUNDS):
            one.add(asyncio.run(ask_for(place, exam.pictures, 1, options.seconds / ROUNDS / 2)))
            before = batches_so_far(client)
            many.add(asyncio.run(ask_for(place, exam.pictures, options.connections, options.seconds / ROUNDS)))
            batches += [after - earlier for after, earlier in zip(batches_so_far(client), before, strict=True)]
            teaching.append(client.job(lesson["id"])["state"])
        if teaching[-1] == "done":
            exam.add_model(path)
        else:
            client.cancel(lesson["id"])
    gain = many.per_second / one.per_second if one.per_second else 0.0
    return {
        "model": name,
        "about": MODELS[name][0],
        "one_at_a_time": one.to_json(exam),
        "many_at_once": many.to_json(exam),
        "connections": options.connections,
        "mean_batch": round(sum(batches[::2]) / max(1.0, sum(batches[1::2])), 1),
        "gain": round(gain, 2),
        "lesson": teaching,
    }


def batches_so_far(client: Client) -> tuple[float, float]:
    """The numbers of pictures and of batches."""
    with client.request("GET", "/metrics") as response:
        lines = response.read().decode().splitlines()
    values = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("clom_batch_pictures_")}
    return values["clom_batch_pictures_sum"], values["clom_batch_pictures_count"]


# --------------------------------------------------------------------------------------------------------------- report


def page(found: Sequence[dict[str, Any]], about: dict[str, Any], load: Sequence[float], seconds: float) -> str:
    lines = [
        "# Serving under load",
        "",
        f"`python -m benchmarks.load`: {seconds:.0f} s of questions on many connections and half as long on one, in "
        f"{ROUNDS} rounds that take turns, to one `clom serve` on loopback **while it is being taught**; server, "
        "lesson and clients share the machine. Every answer was compared with that of the model it came from.",
        "",
        f"{about['processor']}, {about['cores']} cores, torch {about['packages']['torch']}; load average "
        f"{load[0]:.1f} before and {load[1]:.1f} after (other work ran on the machine if it is above the cores).",
        "",
        "| model | one at a time /s | p99 ms | at once /s | p50 ms | p99 ms | mean batch | gain | wrong | failed "
        "| lesson after each round |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        one, many = each["one_at_a_time"], each["many_at_once"]
        lines.append(
            f"| {each['about']} | {one['per_second']} | {one['p99_ms']} | {many['per_second']} | {many['p50_ms']} | "
            f"{many['p99_ms']} | {each['mean_batch']} | **{each['gain']}x** | {one['wrong'] + many['wrong']} | "
            f"{one['failed'] + many['failed']} | {', '.join(each['lesson'])} |"
        )
    total = sum(each["one_at_a_time"]["requests"] + each["many_at_once"]["requests"] for each in found)
    lines += ["", f"{total} answers in all, on {found[0]['connections']} connections; the aim is {LEAST_GAIN:g}x.", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of many connections, for each model")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--only", default=",".join(MODELS), help="some of the models")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="for the server")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--quick", action="store_true", help="the small model for three seconds, as a smoke test")
    options = parser.parse_args(arguments)
    names = list(MODELS)[:1] if options.quick else [name for name in MODELS if name in options.only]
    options.seconds = 3.0 if options.quick else options.seconds
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    found = []
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place) / "photos"
        write_example_photos(photos, per_class=10, per_class_new=4)
        for name in names:
            found.append(measure(name, photos, Path(place), options))
            print(json.dumps(found[-1], indent=2))
    about = machine.describe()
    load = before, os.getloadavg()[0]
    content = {"machine": about, "load_average": load, "seconds": options.seconds, "models": found}
    numbers, text = options.out / "serving.json", options.out / "serving.md"
    earlier = json.loads(numbers.read_text(encoding="utf-8")) if numbers.exists() else {}
    attacked = text.read_text(encoding="utf-8").partition(ATTACK)[1:] if text.exists() else ()  # of benchmarks.attack
    content |= {"attack": earlier["attack"]} if "attack" in earlier else {}
    write_atomically(numbers, json.dumps(content, indent=2).encode())
    whole = (
        page(found, about, load, options.seconds).rstrip("\n")
        + "\n"
        + ("\n" + "".join(attacked) if any(attacked) else "")
    )
    write_atomically(text, whole.encode())


if __name__ == "__main__":
    main()
