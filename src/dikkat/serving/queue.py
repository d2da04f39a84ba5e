"""The queue of requests, whose sentences are translated in batches across requests."""

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
    """Too many sentences are waiting."""

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
    """The waiting requests, and the thread that translates. One thread is enough, as a search uses all cores."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()  # guards the jobs
        self._batch: list[_Job] = []  # in work
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "dikkat-serving")
        self._seconds_per_sentence = 0.05  # moving average
        metrics.waiting.set_function(self._count_waiting)

    async def translate(
        self, translator: Translator, options: Mapping[str, Any], texts: Sequence[str]
    ) -> list[list[Translation]]:
        """Wait for the queue, and return the translations of each sentence.

        Raises:
            BusyError: If too many sentences are waiting.
            TimeoutError: If the time limit is exceeded.
            InputError: If a sentence is invalid.
        """
        if not texts:
            return []
        waiting, size = self._count_waiting(), self._limits.batch
        late = waiting * self._seconds_per_sentence > self._limits.seconds / 2
        if waiting and (late or waiting + len(texts) > self._limits.queue):
            raise BusyError(max(1, math.ceil(waiting * self._seconds_per_sentence)))
        loop = asyncio.get_running_loop()
        chunks = [texts[start : start + size] for start in range(0, len(texts), size)]
        jobs = [_Job(translator, options, chunk, loop.create_future()) for chunk in chunks]
        with self._changed:
            self._jobs.extend(jobs)
            self._changed.notify()
        try:
            async with asyncio.timeout(self._limits.seconds):
                return [n_best for job in jobs for n_best in await job.result]
        finally:  # after a timeout, cancelled futures tell the thread to skip their jobs
            for job in jobs:
                job.result.cancel()

    async def run(self) -> None:
        """Translate batch after batch, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._work, loop)
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify()
                unfinished = [*self._batch, *self._jobs]
            for job in unfinished:
                job.result.cancel()
            self._thread.shutdown(wait=False)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Translate batches in the thread. The thread selects the batches itself, as the event loop may be busy."""
        while batch := self._wait_for_batch():
            begin = time.perf_counter()
            result: list[list[Translation]] | Exception
            try:
                result = _translate(batch)
            except Exception as error:  # the requests raise it
                result = error
            if self._closed:  # the loop may be closed too
                return
            loop.call_soon_threadsafe(self._finish, batch, result, time.perf_counter() - begin)

    def _finish(self, batch: Sequence[_Job], result: list[list[Translation]] | Exception, seconds: float) -> None:
        count = sum(len(job.texts) for job in batch)
        # Bounded by four times the average, since the first batch may include the time to compile kernels.
        average = self._seconds_per_sentence
        self._seconds_per_sentence += (min(seconds / count, 4 * average) - average) / 8
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

    def _count_waiting(self) -> int:
        with self._changed:
            return sum(len(job.texts) for job in self._jobs if not job.result.done())

    def _wait_for_batch(self) -> list[_Job]:
        with self._changed:
            self._batch = []
            while not self._closed and not self._batch:
                self._batch = self._pop_batch()
                if not self._batch:
                    self._changed.wait()
            return [] if self._closed else self._batch

    def _pop_batch(self) -> list[_Job]:
        """Remove and return the first active job and the jobs with the same translator and options, up to the limit."""
        batch: list[_Job] = []
        capacity, skipped = self._limits.batch, deque[_Job]()
        while self._jobs and capacity > 0:
            job = self._jobs.popleft()
            if job.result.done():
                continue
            fits = not batch or (
                job.translator is batch[0].translator and job.options == batch[0].options and len(job.texts) <= capacity
            )
            if not fits:
                skipped.append(job)
                continue
            batch.append(job)
            capacity -= len(job.texts)
        self._jobs.extendleft(reversed(skipped))
        return batch


def _translate(batch: Sequence[_Job]) -> list[list[Translation]]:
    with stopping(lambda: all(job.result.done() for job in batch)):
        lines = [text for job in batch for text in job.texts]
        first = batch[0]
        return list(first.translator.translate_n_best(lines, **first.options))
