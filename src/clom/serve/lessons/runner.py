"""Training jobs: one at a time, with progress events, resumable after interruptions.

Tested by tests/serve/lessons/test_lessons.py.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor

from clom import machine
from clom.errors import UserError
from clom.locks import Held, Lock
from clom.photos.hints import Hint
from clom.photos.teach import remove_leftovers
from clom.serve.answers.engine import Engine
from clom.serve.images.decoder_pool import Unreadable
from clom.serve.lessons.job import WAITING, Job
from clom.serve.lessons.stored_lesson import Assignment, StoredLesson
from clom.serve.worker_process import WorkerProcess
from clom.storage.checkpoints import lesson_folder

_REMEMBERED = 20
_KEEP_ALIVE_SECONDS = 15.0


class Busy(UserError):
    """Another job is running or waiting."""


class NoSuchJob(UserError):
    """There is no job with this id."""


class LessonRunner:
    """The training jobs of one model."""

    def __init__(self, engine: Engine, niceness: int = 10, read_only: bool = False) -> None:
        self.engine, self.stored, self.niceness = engine, StoredLesson(engine.path), niceness
        self.read_only = read_only
        self._jobs: dict[str, Job] = {}
        self._running: asyncio.Task[None] | None = None
        self._worker: WorkerProcess | None = None
        self._changed = asyncio.Condition()
        self._turn = asyncio.Lock()
        """One request at a time changes which job there is: its pictures are in a folder that all jobs share."""
        self._held: ExitStack | None = None
        """While the folder has the pictures of a job of this server: another server must not touch them."""
        self.adopt()

    def adopt(self) -> None:
        """Offer to resume what an earlier server left, unless another one is working on it."""
        if self.read_only or self._held is not None or not self.stored.folder.exists():
            return
        try:
            self._hold()
        except (Busy, OSError):
            return
        left = self.stored.read()
        if left is not None and not self._is_learned(left):
            self._jobs[left.id] = Job(left, state="interrupted")
            return
        if left is not None:
            self.stored.remove()  # interrupted after saving the model, before cleaning up
        self._release()

    @property
    def current(self) -> Job | None:
        """The latest job."""
        return next(reversed(self._jobs.values()), None)

    @property
    def all(self) -> list[Job]:
        """All known jobs, in the order of their start."""
        return list(self._jobs.values())

    @property
    def teaching(self) -> bool:
        return self.current is not None and not self.current.over

    def get(self, number: str) -> Job:
        if number not in self._jobs:
            raise NoSuchJob(f"There is no lesson '{number[:40]}'.")
        return self._jobs[number]

    def check_free(self) -> None:
        """Raise if another job is running, or waiting to be resumed or cancelled."""
        job = self.current
        if job is not None and not job.over:
            raise Busy(f"'{job.assignment.name}' is being learned. One lesson at a time: wait for it, or cancel it.")
        if job is not None and job.state in WAITING:
            raise Busy(f"The lesson '{job.assignment.name}' is not finished. Go on with it, or give it up first.")

    async def begin(
        self,
        name: str,
        class_names: Sequence[str],
        pixels: Tensor,
        labels: Sequence[int],
        unreadable: Sequence[Unreadable] = (),
        *,
        adds: bool = False,
        hints: Sequence[Hint] = (),
        wait: bool = False,
    ) -> Job:
        """Store the pictures and start learning; with `wait`, only once somebody resumes the job."""
        async with self._turn:
            self.adopt()
            self.check_free()
            counts = tuple(labels.count(label) for label in range(len(class_names)))
            noticed = tuple((hint.kind, hint.text) for hint in hints)
            number = secrets.token_hex(8)
            assignment = Assignment(number, name, tuple(class_names), counts, tuple(unreadable), adds, noticed)
            job = Job(assignment, state="checked" if wait else "preparing")
            self._jobs[assignment.id] = job
            for old in list(self._jobs)[:-_REMEMBERED]:
                del self._jobs[old]
            try:
                self._hold()
                await _in_thread(partial(self.stored.write, assignment, pixels, labels))
            except (Busy, OSError) as problem:
                del self._jobs[assignment.id]
                self._release()
                if isinstance(problem, Busy):
                    raise
                why = problem.strerror or problem
                raise UserError(f"The pictures cannot be kept beside the model: {why}.") from None
            if wait:
                return job
            self._running = asyncio.create_task(self._run(job))
            return job

    async def resume(self, job: Job) -> None:
        """Resume a job from its last checkpoint, if any: the result is the same."""
        async with self._turn:
            if job is not self.current or job.state not in WAITING:
                raise Busy("Only a lesson that ended early can go on.")
            job.state, job.problem, job.share, job.first_step = "preparing", "", 0.0, None
            self._running = asyncio.create_task(self._run(job))
            await self._tell(job)

    async def cancel(self, job: Job) -> None:
        """Cancel a job. The model stays unchanged, unless the task had already been saved."""
        async with self._turn:
            if job.state in WAITING:
                await _in_thread(self._tidy)
                job.state = "cancelled"
            elif not job.over:
                await self._end()
                learned = await self._learned(job)
                await _in_thread(self._tidy)
                job.state = "done" if learned else "cancelled"
                self._share_cores()
            else:
                return
            self._release()
            await self._tell(job)

    async def stop(self) -> None:
        """Shut down: a running job is interrupted, and its pictures are kept for the next server."""
        await self._end()
        self._release()

    async def _end(self) -> None:
        """Stop what is running."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait([self._running])
        if self._worker is not None:
            await self._worker.end()

    async def changes(self, job: Job) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the state of the job now and after each change, until it ends; None as a keep-alive."""
        while True:
            seen = job.revision
            yield job.to_json()
            if job.over:
                return
            while not await self._differs(job, seen):
                yield None

    async def _differs(self, job: Job, seen: int) -> bool:
        """True as soon as the job changes; False after a timeout."""
        async with self._changed:
            news = self._changed.wait_for(lambda: job.revision != seen)
            try:
                return await asyncio.wait_for(news, _KEEP_ALIVE_SECONDS)
            except TimeoutError:
                return False

    async def _run(self, job: Job) -> None:
        try:
            await self._learn(job)
        except Exception as problem:  # every job must reach a final state
            job.state, job.problem = "failed", f"The lesson ended unexpectedly: {problem or type(problem).__name__}"
        self._share_cores()
        await self._tell(job)

    async def _learn(self, job: Job) -> None:
        teaching, _ = self._share_cores()
        self._worker = WorkerProcess("learn", self.engine.path, teaching, self.niceness, self.engine.device)
        async for event in self._worker.events():
            job.note(event)
            await self._tell(job)
        learned = await self._learned(job)
        if learned:
            await _in_thread(self._tidy)
            self._release()
            job.state, job.share = "done", 1.0
        else:
            job.state = "failed"
            job.problem = job.problem or "The lesson ended unexpectedly. The model is as it was."

    async def _learned(self, job: Job) -> bool:
        """Reload the model; whether it contains what the job teaches."""
        await self.engine.refresh()
        return await asyncio.to_thread(self._is_learned, job.assignment)

    def _is_learned(self, assignment: Assignment) -> bool:
        if assignment.adds:
            return self.stored.was_added(assignment)
        return assignment.name in self.engine.active.task_names

    def _tidy(self) -> None:
        """Delete the pictures and checkpoints of a job."""
        self.stored.remove()
        try:
            with Lock(self.engine.path):
                remove_leftovers(self.engine.path)
                shutil.rmtree(lesson_folder(self.engine.path), ignore_errors=True)
        except UserError:
            pass  # the process that holds the lock cleans up

    def _hold(self) -> None:
        """Keep other servers of this model from the pictures of a job."""
        if self._held is not None:
            return
        held = ExitStack()
        try:
            held.enter_context(Lock(self.stored.folder))
        except Held:
            raise Busy("Another server is teaching this model. Wait for it, or cancel the lesson there.") from None
        self._held = held

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def _share_cores(self) -> tuple[int, int]:
        """Split the cores between training and inference; returns both numbers of threads."""
        cores = self.engine.threads or machine.cores()
        teaching = max(1, cores - 1) if self.teaching else 0
        answering = max(1, cores - teaching)
        self.engine.use_threads(answering)
        return max(1, teaching), answering

    async def _tell(self, job: Job) -> None:
        job.revision += 1
        async with self._changed:
            self._changed.notify_all()


async def _in_thread(work: Callable[[], None]) -> None:
    """Do it in a thread and wait for it, even if this is cancelled meanwhile: what comes next must not overlap."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
