"""Independent computations side by side, on threads of their own.

A small operation gains little from several threads, which wait for each other at its end, and loses much if other
programs delay one of them. Several operations, each on one thread, gain all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


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
        share = n_threads // max(1, min(n_threads, len(jobs)))
        if share == n_threads:  # one thread, or one job for all threads
            return [job() for job in jobs]
        with_gradients = torch.is_grad_enabled()

        def alone(job: Callable[[], Result]) -> Result:
            torch.set_num_threads(share)  # of this worker, and of threads that start later
            with torch.set_grad_enabled(with_gradients):
                return job()

        try:
            return list(self._threads(n_threads).map(alone, jobs))
        finally:
            torch.set_num_threads(n_threads)

    def _threads(self, count: int) -> ThreadPoolExecutor:
        if self._pool is None or self._made_for != (os.getpid(), count):  # a forked process has no threads of its own
            self._pool = ThreadPoolExecutor(count, "clom")
            self._made_for = os.getpid(), count
        return self._pool
