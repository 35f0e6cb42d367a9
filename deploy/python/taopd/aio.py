"""A client of taopd-teacher for asyncio, with the methods of client.py."""

import asyncio
from typing import Any, AsyncIterator, Awaitable, Callable, Iterable, Sequence, TypeVar, overload

import grpc

from taopd.connection import Connection, Pending, Tls, batch_of, collected, is_batch
from taopd.messages import GenerateRequest, Generation, Ids, ScoreRequest, Scores, TeacherInfo, in_order
from taopd.retry import Attempts, RetryOptions, TeacherError

T = TypeVar("T")


class AsyncTeacher(Connection):
    """A connection to one teacher, for one event loop; make it inside the loop. Arguments, results and errors are those
    of Teacher. Cancelling a task cancels its call.

        async with AsyncTeacher("grpc://127.0.0.1:50051") as teacher:
            batch = await teacher.score([[1, 403, 407], [1, 403]], start=1, top_k=2)
    """

    def __init__(self, endpoint: str, *, api_key: str | None = None, tls: Tls | None = None,
                 retries: RetryOptions = RetryOptions(), max_in_flight: int = 64):
        super().__init__(grpc.aio, endpoint, api_key, tls, retries, max_in_flight)
        self._slots = asyncio.Semaphore(max_in_flight)

    async def __aenter__(self) -> "AsyncTeacher":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection. Open calls end with asyncio.CancelledError, as those of grpc.aio do. Later ones fail
        with CANCELLED, and so do requests that wait for their next attempt, when their pause is over."""
        self._closed.set()
        await self._channel.close()

    async def info(self) -> TeacherInfo:
        """Describes the served model. The answer of the first call is kept."""
        if self._info is None:
            async def attempt(timeout: float) -> TeacherInfo:
                return TeacherInfo.of_reply(await self._calls["GetTeacherInfo"](b"", **self._with(timeout)))
            self._info = await self._repeat(attempt)
        return self._info

    @overload
    async def score(self, token_ids: Ids, start: int, top_k: int, *, candidate_ids: Any = ...,
                    **options: Any) -> Scores: ...
    @overload
    async def score(self, token_ids: Sequence[Ids], start: int | Sequence[int], top_k: int, *,
                    candidate_ids: Sequence[Any] | None = ..., **options: Any) -> list[Scores]: ...

    async def score(self, token_ids: Any, start: Any, top_k: int, *, candidate_ids: Any = None, **options: Any) -> Any:
        """Scores one sequence, or a batch. See Teacher.score."""
        if not is_batch(token_ids):
            return await self._score(ScoreRequest(token_ids, start, top_k, candidate_ids=candidate_ids, **options))
        requests = batch_of(token_ids, start, top_k, candidate_ids, options)
        await self.info()
        tasks = [asyncio.ensure_future(self._score(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def score_stream(self, requests: AsyncIterator[ScoreRequest] | Iterable[ScoreRequest]
                           ) -> AsyncIterator[tuple[ScoreRequest, Scores | TeacherError]]:
        """Scores many sequences on one stream. See Teacher.score_stream."""
        info, pending = await self.info(), Pending()
        errors: list[Exception] = []

        def encode(request: ScoreRequest) -> bytes:
            request = self._named(request)
            pending.add(request)
            return request.encode(info)

        async def encoded() -> AsyncIterator[bytes]:
            with collected(errors):
                if isinstance(requests, AsyncIterator):
                    async for request in requests:
                        yield encode(request)
                else:
                    for request in requests:
                        yield encode(request)
        with self._stream("ScoreStream", encoded(), source_errors=errors) as replies:
            async for reply in replies:
                request = pending.take(reply["request_id"])
                yield request, request.result_of(reply, info)

    async def generate(self, token_ids: Ids, max_new_tokens: int, **options: Any) -> list[Generation]:
        """Generates `n` sequences from one prompt. See Teacher.generate."""
        request = GenerateRequest(token_ids, max_new_tokens, **options)
        if request.stream_tokens:
            raise ValueError("stream_tokens is for generate_stream")

        async def attempt(timeout: float) -> list[Generation]:
            return in_order([generation async for generation in self._generations(request, timeout)], request.n)
        await self.info()  # it has an outage budget of its own
        return await self._repeat(attempt)

    def generate_stream(self, token_ids: Ids, max_new_tokens: int, **options: Any) -> AsyncIterator[Generation]:
        """Yields each sequence when it is finished, or each token. See Teacher.generate_stream."""
        return self._generations(GenerateRequest(token_ids, max_new_tokens, **options), None)

    async def _generations(self, request: GenerateRequest, timeout: float | None) -> AsyncIterator[Generation]:
        data = request.encode(await self.info())
        with self._stream("Generate", data, timeout) as replies:
            async for reply in replies:
                yield request.generation_of(reply)

    async def _score(self, request: ScoreRequest) -> Scores:
        info = await self.info()
        request = self._named(request)
        data = request.encode(info)

        async def attempt(timeout: float) -> Scores:
            async with self._slots:
                return request.scores_of(await self._calls["Score"](data, **self._with(timeout)), info)
        return await self._repeat(attempt)

    async def _repeat(self, attempt: Callable[[float], Awaitable[T]]) -> T:
        """Awaits `attempt` with its time limit until it succeeds or its error is final."""
        attempts = Attempts(self._retries)
        while True:
            try:
                with self._as_teacher_errors():
                    return await attempt(attempts.timeout_s())
            except TeacherError as error:
                pause = attempts.pause_after(error)
                self._log_retry(error, pause)
                await asyncio.sleep(pause)
