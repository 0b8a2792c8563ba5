"""Requests that come at the same time are answered together: a search of many rows costs little more than one row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Busy(Exception):
    """So many requests wait that another would only wait in vain."""


@dataclass
class _Job(Generic[Asked, Answer]):
    asked: Asked
    size: int
    done: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batches(Generic[Asked, Answer]):
    """A queue in front of one thread. While the thread works, requests gather; it takes all that are there at once.

    ``answer`` gets what was asked and gives an answer or an exception for each. Nothing is delayed to wait for others.
    """

    def __init__(self, answer: Callable[[Sequence[Asked]], Sequence[Answer | Exception]], size: int, waiting: int):
        self._answer, self._size, self._waiting = answer, size, waiting

    async def __aenter__(self) -> Batches[Asked, Answer]:
        self._queue: asyncio.Queue[_Job[Asked, Answer]] = asyncio.Queue(self._waiting)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._worker.cancel()
        with suppress(asyncio.CancelledError):
            await self._worker
        while not self._queue.empty():
            self._queue.get_nowait().done.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, asked: Asked, size: int, seconds: float) -> Answer:
        """The answer. Raises :class:`Busy`, ``TimeoutError``, or what was raised while answering."""
        job: _Job[Asked, Answer] = _Job(asked, size)
        try:
            self._queue.put_nowait(job)
        except asyncio.QueueFull:
            raise Busy from None
        return await asyncio.wait_for(job.done, seconds)  # a job that is given up is cancelled, and skipped

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            jobs = [await self._queue.get()]
            while not self._queue.empty() and sum(job.size for job in jobs) < self._size:
                jobs.append(self._queue.get_nowait())
            jobs = [job for job in jobs if not job.done.done()]
            if not jobs:
                continue
            try:
                answers = await loop.run_in_executor(self._thread, self._answer, [job.asked for job in jobs])
            except asyncio.CancelledError:
                for job in jobs:
                    job.done.cancel()
                raise
            except Exception as error:
                answers = [error] * len(jobs)
            for job, answer in zip(jobs, answers, strict=True):
                if job.done.done():
                    continue
                if isinstance(answer, Exception):
                    job.done.set_exception(answer)
                else:
                    job.done.set_result(answer)
