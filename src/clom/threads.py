"""Independent computations side by side, on threads of their own.

A small operation gains little from several threads, which wait for each other at its end, and loses much if other
programs delay one of them. Several operations, each on one thread, gain all of it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

Result = TypeVar("Result")

_PATIENCE = 0.001
"""Seconds that the caller works alone, unless more work is expected: on a busy machine, waiting for another thread
takes as long."""


class Workers:
    """Threads that stay between calls, since oneDNN caches its kernels per thread. Copies start threads of their
    own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._made_for = (0, 0)  # process and number of threads
        self._job_seconds = 0.0  # processor time of the caller's jobs last time, on average

    def __reduce__(self) -> tuple[type[Workers], tuple[()]]:
        return Workers, ()

    def run(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results of all jobs, in order. The threads of torch that the caller may use are divided among the jobs
        that run at the same time."""
        n_threads = torch.get_num_threads()
        at_once = min(n_threads, len(jobs))
        if at_once < 2:
            return [job() for job in jobs]
        return self._side_by_side(jobs, at_once, n_threads // at_once)

    def run_on_one_thread_each(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results of all jobs, in order, with the same bits for any number of threads: every job is computed on
        one, since sums may round differently on more."""
        return self._side_by_side(jobs, max(1, min(torch.get_num_threads(), len(jobs))), 1)

    def _side_by_side(self, jobs: Sequence[Callable[[], Result]], at_once: int, threads_each: int) -> list[Result]:
        n_threads = torch.get_num_threads()
        results: list[Future[Result]] = [Future() for _ in jobs]
        waiting = deque(zip(results, jobs, strict=True))
        finished = threading.Event()
        with_gradients = torch.is_grad_enabled()
        scopes = [copy_context() for _ in range(at_once - 1)]  # settings that hold for the caller
        patience = 0.0 if self._job_seconds * len(jobs) > _PATIENCE else _PATIENCE

        def work() -> int:
            done = 0
            with torch.set_grad_enabled(with_gradients):
                while waiting:
                    try:
                        result, job = waiting.popleft()
                    except IndexError:
                        break  # another thread was faster
                    torch.set_num_threads(threads_each)  # of this thread, and of threads that start later
                    try:
                        result.set_result(job())
                    except Exception as problem:
                        result.set_exception(problem)
                    done += 1
            return done

        def help_if_it_takes_long() -> None:
            if not finished.wait(patience):
                work()

        for scope in scopes:
            self._threads(n_threads).submit(scope.run, help_if_it_takes_long)
        start = time.thread_time()
        try:
            done = work()
            if scopes:
                self._job_seconds = (time.thread_time() - start) / max(1, done)
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
