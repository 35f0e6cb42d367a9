"""A client of taopd-teacher for threads. aio.py has the same for asyncio."""

import concurrent.futures
import threading
from typing import Any, Callable, Iterable, Iterator, Sequence, TypeVar, overload

import grpc

from taopd.connection import Connection, Pending, Tls, batch_of, collected, is_batch
from taopd.messages import GenerateRequest, Generation, Ids, ScoreRequest, Scores, TeacherInfo, in_order
from taopd.retry import Attempts, RetryOptions, TeacherError

T = TypeVar("T")


class Teacher(Connection):
    """A connection to one teacher. Any thread may use it; close it, or use it in `with`, to end
    its threads and connection.

    The first call asks the teacher for its revision, and every later request is refused by a teacher that serves
    another one, so all scores of one object are of the same weights.

        with Teacher("grpc://127.0.0.1:50051") as teacher:
            scores = teacher.score([1, 403, 407, 261], start=1, top_k=2)
            scores.ids, scores.logprobs   # [3, 2]
            scores.log_tail               # [3]

    Args:
        endpoint: "grpc://HOST:PORT", or "grpcs://HOST:PORT" for TLS.
        api_key: sent as `authorization: Bearer KEY`.
        tls: files for TLS.
        retries: limits of attempts and pauses; retry.py has the rules.
        max_in_flight: maximum number of concurrent requests of batches; others wait in the client.
    """

    def __init__(self, endpoint: str, *, api_key: str | None = None, tls: Tls | None = None,
                 retries: RetryOptions = RetryOptions(), max_in_flight: int = 64):
        super().__init__(grpc, endpoint, api_key, tls, retries, max_in_flight)
        self._pool = concurrent.futures.ThreadPoolExecutor(max_in_flight, "taopd-teacher")
        self._stops = {self._closed}  # one more for each batch

    def __enter__(self) -> "Teacher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. Open and later calls fail with CANCELLED."""
        for stop in list(self._stops):
            stop.set()
        self._channel.close()
        self._pool.shutdown(cancel_futures=True)

    def info(self) -> TeacherInfo:
        """Describes the served model. The answer of the first call is kept."""
        if self._info is None:
            call = self._calls["GetTeacherInfo"]
            self._info = self._repeat(lambda timeout: TeacherInfo.of_reply(call(b"", **self._with(timeout))))
        return self._info

    @overload
    def score(self, token_ids: Ids, start: int, top_k: int, *, candidate_ids: Any = ..., **options: Any) -> Scores: ...
    @overload
    def score(self, token_ids: Sequence[Ids], start: int | Sequence[int], top_k: int, *,
              candidate_ids: Sequence[Any] | None = ..., **options: Any) -> list[Scores]: ...

    def score(self, token_ids: Any, start: Any, top_k: int, *, candidate_ids: Any = None, **options: Any) -> Any:
        """Scores one sequence, or a batch.

        Args:
            token_ids: [P] one sequence, or several sequences of any lengths.
            start: the first scored position; for a batch, one number for all or one per sequence.
            top_k: k, the number of most probable ids per row.
            candidate_ids: [R, M] ids whose log-probs are wanted; for a batch, one array per sequence.
            options: temperature, entropy, rank, support_stats, dense, expected_revision, as in ScoreRequest.

        Returns:
            Scores, or for a batch a list of them in the order of token_ids.

        Raises:
            ValueError: an argument that no teacher can accept.
            TeacherError: the teacher's refusal, or the last failure when the outage budget is used up. The first error of
                a batch ends it.
        """
        if not is_batch(token_ids):
            return self._score(ScoreRequest(token_ids, start, top_k, candidate_ids=candidate_ids, **options),
                               self._closed)
        requests = batch_of(token_ids, start, top_k, candidate_ids, options)
        self.info()
        with self._as_teacher_errors():
            return self._score_batch(requests)

    def score_stream(self, requests: Iterable[ScoreRequest]) -> Iterator[tuple[ScoreRequest, Scores | TeacherError]]:
        """Scores many sequences on one stream. `requests` may be a generator, which is read on a thread of gRPC as fast
        as the teacher accepts requests. Yields each request with its scores or its error, in the order of completion.
        Nothing is repeated; a failure of the stream itself raises TeacherError."""
        info, pending = self.info(), Pending()
        errors: list[Exception] = []

        def encoded() -> Iterator[bytes]:
            with collected(errors):
                for request in requests:
                    request = self._named(request)
                    pending.add(request)
                    yield request.encode(info)
        with self._stream("ScoreStream", encoded(), source_errors=errors) as replies:
            for reply in replies:
                request = pending.take(reply["request_id"])
                yield request, request.result_of(reply, info)

    def generate(self, token_ids: Ids, max_new_tokens: int, **options: Any) -> list[Generation]:
        """Generates `n` sequences from one prompt, and returns them in order. GenerateRequest has the options."""
        request = GenerateRequest(token_ids, max_new_tokens, **options)
        if request.stream_tokens:
            raise ValueError("stream_tokens is for generate_stream")
        self.info()  # it has an outage budget of its own
        return self._repeat(lambda timeout: in_order(list(self._generations(request, timeout)), request.n))

    def generate_stream(self, token_ids: Ids, max_new_tokens: int, **options: Any) -> Iterator[Generation]:
        """Like generate, but yields each sequence when it is finished, or with stream_tokens each token. Nothing is
        repeated; closing the iterator ends the work."""
        return self._generations(GenerateRequest(token_ids, max_new_tokens, **options), None)

    def _generations(self, request: GenerateRequest, timeout: float | None) -> Iterator[Generation]:
        data = request.encode(self.info())
        with self._stream("Generate", data, timeout) as replies:
            for reply in replies:
                yield request.generation_of(reply)

    def _score_batch(self, requests: list[ScoreRequest]) -> list[Scores]:
        """Scores the requests on the threads of the pool. The first error ends the other requests."""
        stop = threading.Event()
        self._stops.add(stop)
        futures: list[concurrent.futures.Future[Scores]] = []
        try:
            futures += (self._pool.submit(self._score, request, stop) for request in requests)
            concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            for future in futures:
                if future.done():
                    future.result()  # raises the first error before those of later requests
            return [future.result() for future in futures]
        finally:
            stop.set()
            self._stops.discard(stop)
            for future in futures:
                future.cancel()

    def _score(self, request: ScoreRequest, stop: threading.Event) -> Scores:
        info, call = self.info(), self._calls["Score"]
        request = self._named(request)
        data = request.encode(info)
        return self._repeat(lambda timeout: request.scores_of(call(data, **self._with(timeout)), info), stop)

    def _repeat(self, attempt: Callable[[float], T], stop: threading.Event | None = None) -> T:
        """Calls `attempt` with its time limit until it succeeds or its error is final."""
        attempts = Attempts(self._retries)
        while True:
            try:
                with self._as_teacher_errors():
                    return attempt(attempts.timeout_s())
            except TeacherError as error:
                pause = attempts.pause_after(error)
                self._log_retry(error, pause)
                if (stop or self._closed).wait(pause):
                    raise
