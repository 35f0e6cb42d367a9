"""The common part of the two clients: the connection to a teacher, and the requests of a batch."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import logging
import pathlib
import re
import threading
from typing import Any, Iterator, Sequence

import grpc
import numpy as np

from taopd import wire
from taopd.messages import ScoreRequest, TeacherInfo
from taopd.retry import NEVER_S, RetryOptions, TeacherError, error_of

log = logging.getLogger("taopd")

SERVICE = "/taopd.v1.Teacher/"
MAX_MESSAGE_BYTES = 64 << 20
# The options are those of the trainer's channels: pings notice a teacher that hangs, all addresses of a name are used
# in turn, and retry.py alone decides about retries.
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.lb_policy_name", "round_robin"), ("grpc.enable_retries", 0), ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1), ("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 250), ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000)]
# The calls: method -> the message of the reply. Requests are encoded before they are sent.
REPLIES = {"GetTeacherInfo": "GetTeacherInfoResponse", "Score": "ScoreResponse", "ScoreStream": "ScoreStreamResponse",
           "Generate": "GenerateResponse"}


@dataclasses.dataclass(frozen=True)
class Tls:
    """Paths of PEM files for grpcs:// endpoints.

    Attributes:
        ca_file: the authorities that sign the teacher's certificate; None: gRPC's own list.
        cert_file, key_file: the client's certificate, for teachers that ask for one; both or none.
    """
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("tls: cert_file and key_file belong together")
        read = [pathlib.Path(path).read_bytes() if path else None
                for path in (self.ca_file, self.key_file, self.cert_file)]
        return grpc.ssl_channel_credentials(*read)


class Endpoint:
    """Parses grpc://HOST:PORT, or grpcs:// for TLS."""

    def __init__(self, url: str, api_key: str | None, tls: Tls | None):
        match = re.fullmatch(r"(grpcs?)://((?:\[[0-9a-fA-F:.]+\]|[\w.-]+):(\d{1,5}))", url)
        if not match or not 1 <= int(match[3]) <= 65535:
            raise ValueError(f"endpoint {url!r} must be grpc://HOST:PORT or grpcs://HOST:PORT")
        if match[1] == "grpc" and tls is not None:
            raise ValueError(f"endpoint {url!r}: tls needs grpcs://")
        if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable()):
            raise ValueError("api_key must be printable ASCII and not empty")
        self.url, self.target = url, "dns:///" + match[2]
        self.credentials = (tls or Tls()).credentials() if match[1] == "grpcs" else None
        self.metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()

    def channel(self, grpc_module: Any) -> Any:
        """Returns a channel of grpc or grpc.aio."""
        if self.credentials is not None:
            return grpc_module.secure_channel(self.target, self.credentials, CHANNEL_OPTIONS)
        return grpc_module.insecure_channel(self.target, CHANNEL_OPTIONS)


def calls(channel: Any) -> dict[str, Any]:
    """Returns {method: callable of the channel}. Requests are bytes, replies are dicts of their fields."""
    kinds = {"GetTeacherInfo": channel.unary_unary, "Score": channel.unary_unary, "ScoreStream": channel.stream_stream,
             "Generate": channel.unary_stream}
    return {method: make(SERVICE + method, response_deserializer=functools.partial(wire.decode, REPLIES[method]))
            for method, make in kinds.items()}


@contextlib.contextmanager
def collected(errors: list[Exception]) -> Iterator[None]:
    """Adds an exception to the list, and lets it pass."""
    try:
        yield
    except Exception as error:
        errors.append(error)
        raise


class Connection:
    """The part of a client that does not depend on how it waits. `grpc_module` is grpc or grpc.aio."""

    def __init__(self, grpc_module: Any, endpoint: str, api_key: str | None, tls: Tls | None, retries: RetryOptions,
                 max_in_flight: int):
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight {max_in_flight} must be at least 1")
        self._endpoint = Endpoint(endpoint, api_key, tls)
        self._retries = retries
        self._channel = self._endpoint.channel(grpc_module)
        self._calls = calls(self._channel)
        self._numbers = itertools.count()
        self._info: TeacherInfo | None = None
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint.url!r})"

    def _with(self, timeout: float | None) -> dict[str, Any]:
        return {"timeout": timeout, "metadata": self._endpoint.metadata}

    @contextlib.contextmanager
    def _as_teacher_errors(self) -> Iterator[None]:
        """Raises TeacherError for a call that has failed, and for the exceptions by which gRPC and a pool of threads
        refuse work after close()."""
        try:
            yield
        except grpc.RpcError as failure:
            raise error_of(failure, self._endpoint.url) from failure
        except (ValueError, RuntimeError, concurrent.futures.CancelledError, grpc.aio.UsageError) as refusal:
            if not self._closed.is_set():
                raise
            raise TeacherError(grpc.StatusCode.CANCELLED, f"{self._endpoint.url}: the connection is closed",
                               NEVER_S) from refusal

    @contextlib.contextmanager
    def _stream(self, method: str, request: Any, timeout: float | None = None,
                source_errors: Sequence[Exception] = ()) -> Iterator[Any]:
        """Opens a call whose replies are a stream, and ends it. Raises TeacherError for the errors of both clients, or
        the first of source_errors: gRPC cancels a call whose requests raise, and keeps the reason to itself."""
        with self._as_teacher_errors():
            call = self._calls[method](request, **self._with(timeout))
        try:
            yield call
        except (grpc.RpcError, asyncio.CancelledError) as failure:
            if source_errors:
                raise source_errors[0] from None
            if isinstance(failure, asyncio.CancelledError):
                raise
            raise error_of(failure, self._endpoint.url) from failure
        finally:
            call.cancel()

    def _named(self, request: ScoreRequest) -> ScoreRequest:
        """Gives a request without a request_id the next number. Thread-safe, because itertools.count is."""
        if not request.request_id:
            return dataclasses.replace(request, request_id=f"{next(self._numbers)}")
        return request

    def _log_retry(self, error: TeacherError, pause_s: float) -> None:
        log.warning("%s: %s; trying again in %.1f s", self._endpoint.url, error, pause_s)


def is_batch(token_ids: Any) -> bool:
    """Returns whether token_ids are several sequences."""
    if hasattr(token_ids, "ndim"):
        return bool(token_ids.ndim > 1)
    return len(token_ids) > 0 and (hasattr(token_ids[0], "__len__") and np.ndim(token_ids[0]) > 0)


def batch_of(token_ids: Sequence[Any], start: Any, top_k: int, candidate_ids: Any,
             options: dict[str, Any]) -> list[ScoreRequest]:
    """Returns the requests of a batch. `start` is one number, or one per sequence; candidate_ids has
    one array per sequence."""
    starts = [start] * len(token_ids) if np.ndim(start) == 0 else list(start)
    candidates = [None] * len(token_ids) if candidate_ids is None else list(candidate_ids)
    for name, values in (("start", starts), ("candidate_ids", candidates)):
        if len(values) != len(token_ids):
            raise ValueError(f"{name} has {len(values)} entries for {len(token_ids)} sequences")
    requests = []
    for i, (ids, first, wanted) in enumerate(zip(token_ids, starts, candidates)):
        try:
            requests.append(ScoreRequest(ids, first, top_k, candidate_ids=wanted, **options))
        except ValueError as error:
            raise ValueError(f"sequence {i}: {error}") from error
    return requests


class Pending:
    """The requests of a stream that have no answer yet."""

    def __init__(self) -> None:
        self._requests: dict[str, ScoreRequest] = {}

    def add(self, request: ScoreRequest) -> None:
        if request.request_id in self._requests:
            raise ValueError(f"request_id {request.request_id!r} is in the stream already")
        self._requests[request.request_id] = request

    def take(self, request_id: str) -> ScoreRequest:
        request = self._requests.pop(request_id, None)
        if request is None:
            raise TeacherError(grpc.StatusCode.DATA_LOSS, f"a reply to request {request_id!r}, which was not sent")
        return request
