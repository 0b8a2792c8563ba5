"""Micro-batching: requests that arrive at the same time are answered together.

A search for many rows costs little more than for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple


class Busy(Exception):
    """Too many requests are waiting."""


class _Job(NamedTuple):
    question: Any
    size: int
    answer: asyncio.Future[Any]


class Batches:
    """A queue in front of one thread. Requests gather while the thread works; then it takes up to ``size`` of them.

    ``answer`` gets the questions and returns an answer or an exception for each. No request waits for later ones.
    """

    def __init__(self, answer: Callable[[list[Any]], Sequence[Any]], size: int, waiting: int):
        self._answer, self._size, self._waiting = answer, size, waiting

    async def __aenter__(self) -> Batches:
        self._queue: asyncio.Queue[_Job] = asyncio.Queue(self._waiting)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._worker.cancel()  # the server waits for requests under way before it stops
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, question: Any, size: int, seconds: float) -> Any:
        """Return the answer. Raises :class:`Busy`, ``TimeoutError``, or the exception in place of an answer."""
        job = _Job(question, size, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(job)
        except asyncio.QueueFull:
            raise Busy from None
        return await asyncio.wait_for(job.answer, seconds)  # cancels the job after that time, so that it is skipped

    def has_room(self) -> bool:
        """Whether one more question would be accepted."""
        return not self._queue.full() and not self._worker.done()

    def count_waiting(self) -> int:
        """Return the number of questions in the queue."""
        return self._queue.qsize()

    async def _work(self) -> None:
        while True:
            jobs = [await self._queue.get()]
            while not self._queue.empty() and sum(job.size for job in jobs) < self._size:
                jobs.append(self._queue.get_nowait())
            await self._answer_jobs([job for job in jobs if not job.answer.done()])

    async def _answer_jobs(self, jobs: list[_Job]) -> None:
        questions = [job.question for job in jobs]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, questions)
        except Exception as error:
            answers = [error] * len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            if not job.answer.done():
                (job.answer.set_exception if isinstance(answer, Exception) else job.answer.set_result)(answer)
