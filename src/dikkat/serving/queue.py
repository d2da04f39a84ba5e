"""Sentences of many requests, translated together: what comes while one batch runs makes the next."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dikkat._engine.cancellation import stopping
from dikkat.serving.limits import Limits
from dikkat.serving.metrics import Metrics
from dikkat.translation import Translation, Translator


class BusyError(Exception):
    """Too much is waiting."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False)
class _Job:
    translator: Translator
    options: Mapping[str, Any]
    texts: Sequence[str]
    result: "asyncio.Future[list[list[Translation]]]"


class Queue:
    """The requests that wait, and the one thread that translates: a search uses all cores by itself."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._jobs: deque[_Job] = deque()
        self._came = threading.Condition()  # guards the jobs
        self._batch: list[_Job] = []  # that is being translated
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "dikkat-serving")
        self._pace = 0.05  # seconds a sentence, lately
        metrics.waiting.set_function(self._waiting)

    async def translate(
        self, translator: Translator, options: Mapping[str, Any], texts: Sequence[str]
    ) -> list[list[Translation]]:
        """The translations of each sentence, once they had their turn.

        Raises:
            BusyError: Too many wait.
            TimeoutError: They took too long.
            InputError: They cannot be translated.
        """
        if not texts:
            return []
        waiting, size = self._waiting(), self._limits.batch
        late = waiting * self._pace > self._limits.seconds / 2
        if waiting and (late or waiting + len(texts) > self._limits.queue):
            raise BusyError(max(1, math.ceil(waiting * self._pace)))
        loop = asyncio.get_running_loop()
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        jobs = [_Job(translator, options, part, loop.create_future()) for part in parts]
        with self._came:
            self._jobs.extend(jobs)
            self._came.notify()
        try:
            async with asyncio.timeout(self._limits.seconds):
                return [best for job in jobs for best in await job.result]
        finally:  # where the waiting is given up, the futures are cancelled, which `run` sees
            for job in jobs:
                job.result.cancel()

    async def run(self) -> None:
        """Translate batch after batch, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._work, loop)
        finally:
            with self._came:
                self._closed = True
                self._came.notify()
                left = [*self._batch, *self._jobs]
            for job in left:
                job.result.cancel()
            self._thread.shutdown(wait=False)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """The work of the thread, which takes the next batch itself: the loop may be busy with answers and requests."""
        while batch := self._next():
            began = time.perf_counter()
            result: list[list[Translation]] | Exception
            try:
                result = _translated(batch)
            except Exception as error:  # which is the answer to these requests
                result = error
            if self._closed:  # and the loop too, perhaps
                return
            loop.call_soon_threadsafe(self._done, batch, result, time.perf_counter() - began)

    def _done(self, batch: Sequence[_Job], result: list[list[Translation]] | Exception, seconds: float) -> None:
        count = sum(len(job.texts) for job in batch)
        # One that compiled first says little of those after it: a batch counts as four times as slow at most.
        self._pace += (min(seconds / count, 4 * self._pace) - self._pace) / 8
        self._metrics.batch.observe(count)
        start = 0
        for job in batch:
            end = start + len(job.texts)
            if not job.result.done():
                if isinstance(result, Exception):
                    job.result.set_exception(result)
                else:
                    job.result.set_result(result[start:end])
            start = end

    def _waiting(self) -> int:
        with self._came:
            return sum(len(job.texts) for job in self._jobs if not job.result.done())

    def _next(self) -> list[_Job]:
        with self._came:
            self._batch = []
            while not self._closed and not self._batch:
                self._batch = self._taken()
                if not self._batch:
                    self._came.wait()
            return [] if self._closed else self._batch

    def _taken(self) -> list[_Job]:
        """The first job that somebody waits for, and those that can be translated together with it."""
        batch: list[_Job] = []
        room, others = self._limits.batch, deque[_Job]()
        while self._jobs and room > 0:
            job = self._jobs.popleft()
            if job.result.done():
                continue
            fits = not batch or (
                job.translator is batch[0].translator and job.options == batch[0].options and len(job.texts) <= room
            )
            if not fits:
                others.append(job)
                continue
            batch.append(job)
            room -= len(job.texts)
        self._jobs.extendleft(reversed(others))
        return batch


def _translated(batch: Sequence[_Job]) -> list[list[Translation]]:
    with stopping(lambda: all(job.result.done() for job in batch)):
        lines = [text for job in batch for text in job.texts]
        first = batch[0]
        return list(first.translator.translate_n_best(lines, **first.options))
