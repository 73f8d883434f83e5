"""Kills `clom learn` at random moments and checks that the model opens and answers as before, or as after.

    python killing.py FOLDER COUNT

One process imports everything once and forks the learners, so that a kill costs no start-up.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from clom.cli import main
from clom.photos.teach import learn_pictures
from clom.storage.fingerprint import probes
from clom.storage.model_file import load_model, save_model
from photos.pictures import CONV, clom, pictures, write_pictures

torch.set_num_threads(1)


def answers(path: Path) -> list[torch.Tensor]:
    model = load_model(path)
    return model.blocks(probes(model.image_shape, 4))


def learner(path: Path, folder: Path, prepare: Callable[[], None]) -> int:
    """A process that teaches; its number."""
    process = os.fork()
    if process:
        return process
    code: object = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        prepare()
        main(["learn", str(path), str(folder), "--threads=1"])
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        os._exit(1 if code else 0)


def ended(process: int) -> int:
    return os.waitpid(process, 0)[1]


def nothing() -> None:
    pass


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def while_writing() -> None:
    os.fsync = die  # type: ignore[assignment]


def before_renaming() -> None:
    around_renaming(before=die)


def after_renaming() -> None:
    around_renaming(after=die)


def around_renaming(before: Callable[[], None] = nothing, after: Callable[[], None] = nothing) -> None:
    """Of the model file, not of what is kept beside it."""
    honest = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target.name != "my.model":
            return honest(self, target)
        before()
        honest(self, target)
        after()
        return target

    Path.replace = replace  # type: ignore[assignment, method-assign]


def run(folder: Path, count: int, seed: int = 0) -> None:
    path, photos = folder / "my.model", write_pictures(folder / "new", "blue", "grey", count=5)
    taught = clom(net=CONV, epochs=2)
    learn_pictures(taught, pictures("red", "green", count=5), "old")
    save_model(path, taught)
    content, before = path.read_bytes(), answers(path)

    def state() -> str:
        """Which model is there; it must be one of the two, whole, with the old task as it was."""
        found = answers(path)
        assert torch.equal(found[0], before[0]), "the old task answers otherwise"
        assert (len(found) == 1) == (path.read_bytes() == content)
        return "old" if len(found) == 1 else "new"

    started = time.perf_counter()
    assert ended(learner(path, photos, nothing)) == 0, "learning does not work at all"
    whole = time.perf_counter() - started
    assert state() == "new"

    chance, seen = random.Random(seed), list[str]()
    for _ in range(count):
        path.write_bytes(content)
        process = learner(path, photos, nothing)
        time.sleep(chance.uniform(0, 1.1 * whole))
        os.kill(process, signal.SIGKILL)
        killed = ended(process) != 0
        seen.append(state())
        assert killed or seen[-1] == "new"
    print(f"{count} random moments within {whole:.1f} s: {seen.count('old')} old, {seen.count('new')} new")

    for prepare in (while_writing, before_renaming, after_renaming):
        path.write_bytes(content)
        assert os.WIFSIGNALED(ended(learner(path, photos, prepare)))
        print(f"{prepare.__name__.replace('_', ' ')}: {state()}")
    path.write_bytes(content)
    assert ended(learner(path, photos, nothing)) == 0, "what a killed process leaves is in the way"
    left = sorted(file.name.partition("-")[0] for file in folder.iterdir())
    assert left == [".my.model.before", "my.model", "new"], left


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
