"""Jobs run side by side, with the same results as one after the other."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from clom import threads
from clom.threads import Workers


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
def test_jobs_run_at_the_same_time_and_divide_the_threads() -> None:
    both = threading.Barrier(2, timeout=20)

    def job(number: int) -> tuple[int, int]:
        both.wait()  # passes only if the other job is running as well
        return number, torch.get_num_threads()

    assert Workers().run([partial(job, 0), partial(job, 1)]) == [(0, 2), (1, 2)]
    assert torch.get_num_threads() == 4
    started_later: list[int] = []
    later = threading.Thread(target=lambda: started_later.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert started_later == [4]


@pytest.mark.usefixtures("four_threads")
def test_results_are_in_order_and_a_single_job_has_all_threads() -> None:
    workers = Workers()
    assert workers.run([partial(int, n) for n in range(20)]) == list(range(20))
    assert workers.run([torch.get_num_threads]) == [4]
    assert workers.run([threading.get_ident]) == [threading.get_ident()]
    assert workers.run([]) == []


@pytest.mark.usefixtures("four_threads")
def test_quick_jobs_are_not_worth_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_PATIENCE", 60)
    assert Workers().run([threading.get_ident] * 5) == [threading.get_ident()] * 5
    assert Workers().run([torch.get_num_threads] * 4) == [1] * 4


@pytest.mark.usefixtures("four_threads")
def test_long_jobs_have_other_threads_at_once_from_the_second_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def long_job() -> None:
        start = time.thread_time()
        while time.thread_time() - start < 0.06:
            pass

    workers, both = Workers(), threading.Barrier(2, timeout=20)
    monkeypatch.setattr(threads, "_PATIENCE", 0.1)
    workers.run([long_job] * 2)
    # Whoever must wait does nothing.
    monkeypatch.setattr(threading.Event, "wait", lambda event, seconds=None: bool(seconds))
    workers.run([both.wait] * 2)  # passes only if both run at the same time


@pytest.mark.usefixtures("four_threads")
def test_workers_need_gradients_when_the_caller_does() -> None:
    def product() -> Tensor:
        return torch.ones(1, requires_grad=True) * 2

    assert all(value.requires_grad for value in Workers().run([product] * 3))
    with torch.no_grad():
        assert not any(value.requires_grad for value in Workers().run([product] * 3))


@pytest.mark.usefixtures("four_threads")
def test_a_failing_job_raises_and_leaves_the_threads_as_they_were() -> None:
    def fails() -> int:
        raise ValueError("no")

    workers = Workers()
    with pytest.raises(ValueError, match="no"):
        workers.run([fails, lambda: 1])
    assert torch.get_num_threads() == 4
    assert workers.run([lambda: 1, lambda: 2]) == [1, 2]


@pytest.mark.usefixtures("four_threads")
def test_copies_work() -> None:
    workers = Workers()
    workers.run([lambda: 1, lambda: 2])
    for twin in (copy.deepcopy(workers), pickle.loads(pickle.dumps(workers))):
        assert twin.run([lambda: 1, lambda: 2]) == [1, 2]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_jobs_can_have_one_thread_each_whatever_their_number(count: int) -> None:
    try:
        torch.set_num_threads(3)
        assert Workers().run_on_one_thread_each([torch.get_num_threads] * count) == [1] * count
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
