"""Independent computations side by side, on threads of their own.

A small operation gains little from several threads, which wait for each other at its end, and loses much if other
programs delay one of them. Several operations, each on one thread, gain all of it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

Result = TypeVar("Result")

_PATIENCE = 0.01
"""Seconds that the caller works alone: on a busy machine, waiting for another thread takes as long."""


class Workers:
    """Threads that stay between calls, since oneDNN caches its kernels per thread. Copies start threads of their
    own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._made_for = (0, 0)  # process and number of threads

    def __reduce__(self) -> tuple[type[Workers], tuple[()]]:
        return Workers, ()

    def run(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results of all jobs, in order. The threads of torch that the caller may use are divided among the jobs
        that run at the same time."""
        n_threads = torch.get_num_threads()
        at_once = max(1, min(n_threads, len(jobs)))
        if at_once == 1:
            return [job() for job in jobs]
        results: list[Future[Result]] = [Future() for _ in jobs]
        waiting = deque(zip(results, jobs, strict=True))
        finished = threading.Event()
        with_gradients = torch.is_grad_enabled()
        scopes = [copy_context() for _ in range(at_once - 1)]  # settings that hold for the caller

        def work() -> None:
            with torch.set_grad_enabled(with_gradients):
                while waiting:
                    try:
                        result, job = waiting.popleft()
                    except IndexError:
                        return  # another thread was faster
                    torch.set_num_threads(n_threads // at_once)  # of this thread, and of threads that start later
                    try:
                        result.set_result(job())
                    except Exception as problem:
                        result.set_exception(problem)

        def help_if_it_takes_long() -> None:
            if not finished.wait(_PATIENCE):
                work()

        for scope in scopes:
            self._threads(n_threads).submit(scope.run, help_if_it_takes_long)
        try:
            work()
            return [result.result() for result in results]
        finally:
            finished.set()
            waiting.clear()
            torch.set_num_threads(n_threads)

    def _threads(self, count: int) -> ThreadPoolExecutor:
        if self._pool is None or self._made_for != (os.getpid(), count):  # a forked process has no threads of its own
            self._pool = ThreadPoolExecutor(count - 1, "clom")
            self._made_for = os.getpid(), count
        return self._pool
