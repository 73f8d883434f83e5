"""Inference: concurrent requests are batched, and the model can be replaced at run time.

Tested by tests/serve/answers/test_answers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from clom import machine
from clom.errors import UserError
from clom.files import file_state
from clom.ood.rejection import check_rate, is_unknown
from clom.photos.predict import Answer
from clom.serve.answers.active_model import ActiveModel, load_active_model


class NothingLearned(UserError):
    """The model has no classes yet."""


@dataclass(frozen=True)
class Replies:
    """The answers to one request, in order, and the version of the model."""

    answers: list[Answer]
    version: str


@dataclass(frozen=True, eq=False)
class _Question:
    pixels: Tensor
    task: str | None
    top: int
    false_rejection: float
    reply: asyncio.Future[Replies]


@dataclass(eq=False)
class Engine:
    """Runs inference in a single thread. `active` is immutable; a new model replaces it between two batches."""

    path: Path
    window: float = 0.003
    """Seconds to wait for further requests to batch."""
    most: int = 32
    """Maximum batch size, unless a single request has more pictures."""
    on_batch: Callable[[int], None] = field(default=lambda _: None)
    """Called with the size of every batch."""
    threads: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self._state = file_state(self.path)  # before loading: a file that is replaced meanwhile is loaded again
        self.active = load_active_model(self.path, self.device)
        self._queue: asyncio.Queue[_Question] = asyncio.Queue()
        self._worker = ThreadPoolExecutor(1, "answers")
        self._loader = ThreadPoolExecutor(1, "loading")
        self._loop: asyncio.Task[None] | None = None
        self._refreshing = asyncio.Lock()
        self.use_threads(self.threads or machine.cores())

    def use_threads(self, count: int) -> None:
        """Takes effect with the next batch: torch keeps the number per thread."""
        self._worker.submit(torch.set_num_threads, count)

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
        while not self._queue.empty():
            self._queue.get_nowait().reply.cancel()
        self._worker.shutdown(wait=True)
        self._loader.shutdown(wait=True)

    async def refresh(self) -> bool:
        """Reload the file if it changed; the old model serves requests until then."""
        async with self._refreshing:
            state = file_state(self.path)
            if state == self._state or state is None:
                return False
            load = partial(load_active_model, self.path, self.device)
            self.active = await asyncio.get_running_loop().run_in_executor(self._loader, load)
            self._state = state
            return True

    async def ask(self, pixels: Tensor, task: str | None, top: int, false_rejection: float) -> Replies:
        """Classify uint8 pictures `[n, 3, side, side]`."""
        check_rate(false_rejection)
        if self.active.predictor is None:
            raise NothingLearned("This model has learned nothing yet. Teach it two classes or more first.")
        if task is not None:
            self.active.method.task_number(task)  # raises for an unknown name
        reply: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Question(pixels, task, top, false_rejection, reply))
        return await reply

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            questions = await self._gather()
            self.on_batch(sum(len(question.pixels) for question in questions))
            try:
                replies = await loop.run_in_executor(self._worker, answer_all, self.active, questions)
            except Exception as problem:  # an error must not end the loop
                replies = [problem] * len(questions)
            for question, reply in zip(questions, replies, strict=True):
                if question.reply.done():
                    continue  # the client is gone
                if isinstance(reply, Exception):
                    question.reply.set_exception(reply)
                else:
                    question.reply.set_result(reply)

    async def _gather(self) -> list[_Question]:
        """The first request, and those that arrive within the window."""
        questions = [await self._queue.get()]
        if self.window and self.most > 1:
            await asyncio.sleep(self.window)
        count = len(questions[0].pixels)
        while not self._queue.empty() and count < self.most:
            questions.append(self._queue.get_nowait())
            count += len(questions[-1].pixels)
        return questions


def answer_all(active: ActiveModel, questions: Sequence[_Question]) -> list[Replies | Exception]:
    """One forward pass for all requests with the same task; each with its own `top` and `false_rejection`."""
    replies: dict[_Question, Replies | Exception] = {}
    for task in dict.fromkeys(question.task for question in questions):
        group = [question for question in questions if question.task == task]
        try:
            replies |= _answer_group(active, group, task)
        except Exception as problem:
            replies |= dict.fromkeys(group, problem)
    return [replies[question] for question in questions]


def _answer_group(active: ActiveModel, group: Sequence[_Question], task: str | None) -> dict[_Question, Replies]:
    assert active.predictor is not None
    top = max(question.top for question in group)
    answers = iter(active.predictor(torch.cat([question.pixels for question in group]), task, top, 0.0))
    return {
        question: Replies([_for_question(next(answers), question) for _ in question.pixels], active.version)
        for question in group
    }


def _for_question(answer: Answer, question: _Question) -> Answer:
    rejected = is_unknown(answer.familiarity, question.false_rejection)
    return replace(answer, guesses=answer.guesses[: question.top], unknown=rejected)
