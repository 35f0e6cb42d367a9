"""The rules by which failed attempts are repeated. They are those of taopd-trainer for one endpoint. Scoring is
idempotent, so a request can be sent again even if the teacher may have computed it already.

Retries, by the status of the attempt:
    UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED, ABORTED
        until the outage budget is used up, which counts from the first failure
    DATA_LOSS (a reply that does not fit its request), INTERNAL, UNKNOWN
        once
    every other status, and any status with a negative grpc-retry-pushback-ms
        never
"""

import dataclasses
import random
import time
from typing import Any, Callable

import grpc

PUSHBACK_KEY = "grpc-retry-pushback-ms"
NEVER_S = -1.0

_UNTIL_BUDGET = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED,
                 grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED}
_ONCE = {grpc.StatusCode.DATA_LOSS, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


class TeacherError(Exception):
    """A request that failed and is not tried again.

    Attributes:
        code: the grpc.StatusCode.
        message: the server's text, which names the field, its value and the limit.
        pushback_s: the seconds that the server asks to wait; negative means never again; None if it said nothing.
    """

    def __init__(self, code: grpc.StatusCode, message: str, pushback_s: float | None = None):
        super().__init__(f"{code.name}: {message}")
        self.code, self.message, self.pushback_s = code, message, pushback_s


def status_code(number: int) -> grpc.StatusCode:
    """Returns the status with this number, or UNKNOWN if gRPC has none."""
    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)


def error_of(failure: Any, where: str) -> TeacherError:
    """Returns the error of a failed call. `failure` is its grpc.RpcError, also of grpc.aio."""
    pushback = None
    for key, value in failure.trailing_metadata() or ():
        if key == PUSHBACK_KEY:
            # Text that is not a number means "do not retry" (gRPC proposal A6).
            pushback = int(value) / 1000 if value.isdecimal() else NEVER_S
    # gRPC gives a message that is too large the code of a full queue, but it fails each time.
    if failure.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in (failure.details() or ""):
        pushback = NEVER_S
    return TeacherError(failure.code(), f"{where}: {failure.details()}", pushback)


@dataclasses.dataclass(frozen=True)
class RetryOptions:
    """Times are in seconds.

    Attributes:
        request_timeout_s: limit of one attempt.
        outage_budget_s: limit of one request, attempts and pauses together, from its first failure. 0: no retries.
        initial_backoff_s, max_backoff_s: the n-th pause is uniform in [0, min(max, initial * 2^(n-1))], and at least
            the server's pushback.
    """
    request_timeout_s: float = 120.0
    outage_budget_s: float = 60.0
    initial_backoff_s: float = 0.25
    max_backoff_s: float = 30.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            must_be_positive = field.name == "request_timeout_s"
            if not 0 <= value < float("inf") or (value == 0 and must_be_positive):
                limit = "above 0" if must_be_positive else "at least 0"
                raise ValueError(f"{field.name} {value} must be a finite number of seconds, {limit}")


class Attempts:
    """Counts the attempts of one request, and decides about the next one."""

    def __init__(self, options: RetryOptions, clock: Callable[[], float] = time.monotonic,
                 uniform: Callable[[], float] = random.random):
        self._options, self._clock, self._uniform = options, clock, uniform
        self._end = float("inf")
        self._num_failures = self._num_doubtful = 0

    def timeout_s(self) -> float:
        """Returns the time limit of the next attempt."""
        return min(self._options.request_timeout_s, self._end - self._clock())

    def pause_after(self, error: TeacherError) -> float:
        """Returns the seconds to wait before the next attempt. Raises the error that ends the request."""
        is_doubtful = error.code in _ONCE
        self._num_doubtful += is_doubtful
        refused = error.pushback_s is not None and error.pushback_s < 0
        if refused or self._num_doubtful > 1 or not (is_doubtful or error.code in _UNTIL_BUDGET):
            raise error
        now = self._clock()
        self._num_failures += 1
        if self._num_failures == 1:
            self._end = now + self._options.outage_budget_s
        growth = 2.0 ** min(self._num_failures - 1, 62)
        limit = min(self._options.max_backoff_s, self._options.initial_backoff_s * growth)
        pause = max(limit * self._uniform(), error.pushback_s or 0.0)
        if self._options.outage_budget_s == 0:
            raise error
        if now + pause >= self._end:
            attempts = f"{self._num_failures} failed attempt{'s' if self._num_failures > 1 else ''}"
            raise TeacherError(grpc.StatusCode.UNAVAILABLE, f"given up after {attempts}: outage_budget_s "
                               f"{self._options.outage_budget_s:g} is used up; last error: {error}") from error
        return pause
