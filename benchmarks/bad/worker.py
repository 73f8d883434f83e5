"""The process in which bad inputs are read: bounded memory, and a watch on whether an input gets code to run."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.bad.cases import Case, Reader
from benchmarks.bad.payload import MARK
from clom.cli import main
from clom.errors import UserError

MOST_MEMORY = 10**9
MOST_TEXT = 3000
_NO_MEMORY = ("allocate memory", "not enough memory", "bad_alloc", "bad alloc", "Cannot allocate")
FAULTS = ("traceback", "hang", "over 1 GB", "ran code", "endless message")
_STARTS_SOMETHING = frozenset(
    {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.fork", "os.forkpty", "pty.spawn"}
    | {"subprocess.Popen", "socket.connect", "socket.getaddrinfo", "webbrowser.open"}
)


@dataclass(frozen=True)
class Outcome:
    """What became of an input: `read`, `refused`, or one of `FAULTS`."""

    kind: str
    detail: str = ""
    seconds: float = 0.0


class Watch:
    """Notes whether anything outside of this process was started. An audit hook cannot be taken away again."""

    def __init__(self) -> None:
        self.armed = False
        self.events: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: object) -> None:
        if self.armed and event in _STARTS_SOMETHING:
            self.events.append(event)


def serve(connection: Connection, seed: int, readers: Callable[[], list[Reader]]) -> None:
    """Tell how many inputs were made by hand for each reader; then answer `(case, folder)` with what the input is, and
    then with its outcome, until the connection is closed."""
    known = {reader.name: reader for reader in readers()}
    by_hand = {name: reader.special() for name, reader in known.items()}
    watch = Watch()
    os.environ.pop("CLOM_DATA", None)
    gc.freeze()  # what is there now need not be looked at again before every input
    connection.send({name: len(inputs) for name, inputs in by_hand.items()})
    while True:
        try:
            case, folder = connection.recv()
        except EOFError:
            return
        reader = known[case.reader]
        connection.send(case.make(reader, by_hand[case.reader], folder, seed))
        connection.send(_judge(reader, case, folder, watch))


def _judge(reader: Reader, case: Case, folder: Path, watch: Watch) -> Outcome:
    action = _by_command if case.through_command(reader) else _by_function
    gc.collect()
    watch.events.clear()
    started = time.process_time()
    watch.armed = True
    with limited_memory(MOST_MEMORY):
        kind, detail = action(reader, folder)
    watch.armed = False
    if watch.events or (folder / MARK).exists():
        kind, detail = "ran code", ", ".join(watch.events) or f"made {MARK}"
    return Outcome(kind, detail, time.process_time() - started)


def _by_function(reader: Reader, folder: Path) -> tuple[str, str]:
    try:
        reader.read(folder)
    except UserError as problem:
        if wanted_memory(problem):
            return "over 1 GB", str(problem)[:500]
        text = str(problem)
        return ("refused", text) if 0 < len(text) <= MOST_TEXT else ("endless message", f"{len(text)} characters")
    except Exception as problem:
        kind = "over 1 GB" if wanted_memory(problem) else "traceback"
        return kind, "".join(traceback.format_exception(problem)[-6:])[-2500:]
    return "read", ""


def _by_command(reader: Reader, folder: Path) -> tuple[str, str]:
    assert reader.command is not None
    output = io.StringIO()
    code: object = 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            main(reader.command(folder))
    except SystemExit as end:
        code = end.code or 0
    except BaseException as problem:
        return "traceback", "clom: " + "".join(traceback.format_exception(problem)[-6:])[-2500:]
    text = output.getvalue()
    if code not in (0, 2) or "Traceback" in text:
        return "traceback", f"clom ended with {code}: {text[-2500:]}"
    if code == 2 and not 0 < len(text) <= MOST_TEXT:
        return "endless message", f"{len(text)} characters"
    return ("refused" if code else "read"), text


def wanted_memory(problem: BaseException | None) -> bool:
    """Whether an allocation failed on the way to this error, whatever was made of it afterwards."""
    while problem is not None:
        if isinstance(problem, MemoryError) or any(words in str(problem) for words in _NO_MEMORY):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


@contextlib.contextmanager
def limited_memory(n_bytes: int) -> Iterator[None]:
    """No more than so many bytes beyond what the process has mapped now. Only Linux enforces it."""
    if sys.platform != "linux":
        yield
        return
    import resource

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
