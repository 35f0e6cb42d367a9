"""The client's rules for retries, with a clock of its own, and against a server that answers as it is told."""

import asyncio
import concurrent.futures
import logging
import threading
import unittest

import packages  # noqa: F401
import grpc
import numpy as np

from taopd import AsyncTeacher, GenerateRequest, RetryOptions, ScoreRequest, Teacher, TeacherError, wire
from taopd.retry import Attempts, status_code

Code = grpc.StatusCode
UNTIL_BUDGET = (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.ABORTED)
ONCE = (Code.DATA_LOSS, Code.INTERNAL, Code.UNKNOWN)
FAST = RetryOptions(initial_backoff_s=0.001, max_backoff_s=0.002, outage_budget_s=20)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class AttemptsTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()

    def attempts(self, uniform=1.0, **options):
        return Attempts(RetryOptions(**options), self.clock, lambda: uniform)

    def test_every_status(self):
        for code in Code:
            attempts, failures = self.attempts(), 0
            try:
                for _ in range(5):
                    attempts.pause_after(TeacherError(code, ""))
                    failures += 1
            except TeacherError:
                pass
            expected = 5 if code in UNTIL_BUDGET else 1 if code in ONCE else 0
            self.assertEqual(failures, expected, code)

    def test_pauses_double_up_to_the_limit(self):
        for uniform in (1.0, 0.5, 0.0):
            attempts = self.attempts(uniform, initial_backoff_s=0.25, max_backoff_s=3, outage_budget_s=1000)
            pauses = [attempts.pause_after(TeacherError(Code.UNAVAILABLE, "")) for _ in range(6)]
            self.assertEqual(pauses, [limit * uniform for limit in (0.25, 0.5, 1, 2, 3, 3)])

    def test_pushback(self):
        pause = self.attempts(initial_backoff_s=0.25).pause_after
        self.assertEqual(pause(TeacherError(Code.RESOURCE_EXHAUSTED, "", 2.0)), 2.0)
        self.assertEqual(pause(TeacherError(Code.RESOURCE_EXHAUSTED, "", 0.1)), 0.5)
        with self.assertRaises(TeacherError):
            pause(TeacherError(Code.RESOURCE_EXHAUSTED, "", -1.0))

    def test_the_budget_counts_from_the_first_failure(self):
        attempts = self.attempts(initial_backoff_s=1, max_backoff_s=1, outage_budget_s=10, request_timeout_s=30)
        self.clock.now += 500
        self.assertEqual(attempts.timeout_s(), 30)
        attempts.pause_after(TeacherError(Code.UNAVAILABLE, "first"))
        self.clock.now += 8.5
        self.assertEqual(attempts.timeout_s(), 1.5)
        attempts.pause_after(TeacherError(Code.UNAVAILABLE, "second"))
        self.clock.now += 0.5
        with self.assertRaisesRegex(TeacherError, "UNAVAILABLE: given up after 3 failed attempts: outage_budget_s 10 is used "
                                    "up; last error: ABORTED: third"):
            attempts.pause_after(TeacherError(Code.ABORTED, "third"))

    def test_no_budget_means_no_retries(self):
        with self.assertRaisesRegex(TeacherError, "^ABORTED: x$"):
            self.attempts(outage_budget_s=0).pause_after(TeacherError(Code.ABORTED, "x"))

    def test_bad_options(self):
        for name, value, limit in (("request_timeout_s", 0, "above 0"), ("outage_budget_s", -1, "at least 0"),
                                   ("max_backoff_s", float("inf"), "finite"), ("initial_backoff_s", float("nan"), "finite")):
            with self.assertRaisesRegex(ValueError, f"{name} {value} must be .*{limit}"):
                RetryOptions(**{name: value})

    def test_numbers_of_statuses(self):
        self.assertEqual([status_code(number) for number in (3, 14, 99)], [Code.INVALID_ARGUMENT, Code.UNAVAILABLE, Code.UNKNOWN])


INFO = {"model_name": "m", "revision": "v1", "head_vocab_size": 10, "protocol_version": 1}
REPLY = {"revision": "v1", "top_k": 1, "ids": [3, 4], "logprobs": [-1.0, -2.0], "log_tail": [-0.5, -0.25],
         "sampled_logprobs": [-1.0, -9.0]}


class Server:
    """Answers the calls of Score with the entries of `script`, the last one for all further ones: a status, a (status,
    pushback), or the fields of a reply."""

    def __init__(self, test, *script, info=INFO):
        self.script, self.requests, self.metadata = list(script), [], []
        self._lock = threading.Lock()
        methods = {"Score": grpc.unary_unary_rpc_method_handler(self.score),
                   "GetTeacherInfo": grpc.unary_unary_rpc_method_handler(
                       lambda _, context: wire.encode("GetTeacherInfoResponse", info))}
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("taopd.v1.Teacher", methods),))
        self.url = f"grpc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        test.addCleanup(self._server.stop, None)

    def score(self, data, context):
        request = wire.decode("ScoreRequest", data)
        with self._lock:
            self.requests.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, dict):
            return wire.encode("ScoreResponse", {"request_id": request["request_id"], **answer})
        code, pushback = answer if isinstance(answer, tuple) else (answer, None)
        if pushback is not None:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", pushback),))
        context.abort(code, "as told")


def score(server, retries=FAST, **options):
    with Teacher(server.url, retries=retries, **options) as teacher:
        return teacher.score([1, 2, 3], start=1, top_k=1)


async def score_async(server, retries=FAST, **options):
    async with AsyncTeacher(server.url, retries=retries, **options) as teacher:
        return await teacher.score([1, 2, 3], start=1, top_k=1)


BOTH = (score, lambda *arguments, **options: asyncio.run(score_async(*arguments, **options)))


class ServerTest(unittest.TestCase):
    def test_retries(self):
        for call in BOTH:
            server = Server(self, Code.UNAVAILABLE, (Code.RESOURCE_EXHAUSTED, "1"), Code.INTERNAL, Code.ABORTED, REPLY)
            self.assertEqual(call(server).ids.tolist(), [[3], [4]])
            self.assertEqual(len(server.requests), 5)
            self.assertEqual({request["request_id"] for request in server.requests}, {"0"})
            self.assertEqual({request["expected_revision"] for request in server.requests}, {"v1"})

    def test_final_errors(self):
        for call in BOTH:
            for answer in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.UNAUTHENTICATED, (Code.UNAVAILABLE, "-1"),
                           (Code.UNAVAILABLE, "soon")):
                server = Server(self, answer)
                with self.assertRaisesRegex(TeacherError, f"{server.url}: as told") as caught:
                    call(server)
                self.assertEqual(caught.exception.code, answer[0] if isinstance(answer, tuple) else answer)
                self.assertEqual(len(server.requests), 1, answer)

    def test_budget(self):
        for call in BOTH:
            server = Server(self, Code.UNAVAILABLE)
            with self.assertRaisesRegex(TeacherError, "UNAVAILABLE: given up after .*outage_budget_s 0.8 is used up"):
                call(server, RetryOptions(initial_backoff_s=0.01, outage_budget_s=0.8))
            self.assertGreater(len(server.requests), 1)

    def test_pushback_is_waited_for(self):
        for call in BOTH:
            server = Server(self, (Code.RESOURCE_EXHAUSTED, "60000"), REPLY)
            with self.assertRaisesRegex(TeacherError, "given up after 1 failed attempt:"):
                call(server)  # the budget is 20 s
            self.assertEqual(len(server.requests), 1)

    def test_replies_that_do_not_fit(self):
        for call in BOTH:
            for field, value, problem in (("ids", [3], "ids has 1 numbers, must have 2"), ("ids", [3, 10], r"outside \[0, 10\)"),
                                          ("log_tail", [0.0, float("nan")], "log_tail has a number that is NaN"),
                                          ("entropy", [1.0], "entropy has 1 numbers, must have 0"),
                                          ("request_id", "other", "of request 'other'")):
                server = Server(self, REPLY | {field: value})
                with self.assertRaisesRegex(TeacherError, f"DATA_LOSS: .*{problem}"):
                    call(server)
                self.assertEqual(len(server.requests), 2, field)
            self.assertEqual(call(Server(self, REPLY | {"ids": [3]}, REPLY)).ids.tolist(), [[3], [4]])

    def test_unknown_protocol(self):
        for call in BOTH:
            with self.assertRaisesRegex(TeacherError, "protocol_version 2 of the teacher is not known"):
                call(Server(self, REPLY, info=INFO | {"protocol_version": 2}))

    def test_api_key(self):
        for call in BOTH:
            server = Server(self, REPLY)
            call(server, api_key="secret")
            self.assertEqual(server.metadata[0]["authorization"], "Bearer secret")
        self.assertNotIn("secret", repr(Teacher(server.url, api_key="secret")))

    def test_no_server(self):
        for call in BOTH:
            server = Server(self, REPLY)
            server._server.stop(None).wait()
            with self.assertRaisesRegex(TeacherError, "UNAVAILABLE: given up"):
                call(server, RetryOptions(outage_budget_s=0.5, initial_backoff_s=0.01))

    def test_an_error_of_a_batch_ends_it(self):
        """The other requests wait for a server that asks for 19 s; they do not delay the error."""
        server = Server(self, (Code.RESOURCE_EXHAUSTED, "19000"), (Code.RESOURCE_EXHAUSTED, "19000"), Code.INVALID_ARGUMENT)
        with Teacher(server.url, retries=FAST) as teacher:
            teacher.info()
            done = concurrent.futures.ThreadPoolExecutor(1).submit(teacher.score, [[1, 2, 3]] * 3, 1, 1)
            self.assertEqual(done.exception(timeout=10).code, Code.INVALID_ARGUMENT)

        async def batch():
            async with AsyncTeacher(other.url, retries=FAST) as teacher:
                await asyncio.wait_for(teacher.score([[1, 2, 3]] * 3, 1, 1), 10)
        other = Server(self, (Code.RESOURCE_EXHAUSTED, "19000"), (Code.RESOURCE_EXHAUSTED, "19000"), Code.INVALID_ARGUMENT)
        with self.assertRaisesRegex(TeacherError, "INVALID_ARGUMENT"):
            asyncio.run(batch())

    def test_closing_ends_what_waits(self):
        server = Server(self, (Code.RESOURCE_EXHAUSTED, "19000"))
        waits = threading.Event()
        handler = logging.Handler()
        handler.emit = lambda record: waits.set()
        logging.getLogger("taopd").addHandler(handler)
        self.addCleanup(logging.getLogger("taopd").removeHandler, handler)
        for token_ids in ([1, 2, 3], [[1, 2, 3]] * 2):
            waits.clear()
            teacher = Teacher(server.url, retries=FAST)
            done = concurrent.futures.ThreadPoolExecutor(1).submit(teacher.score, token_ids, 1, 1)
            self.assertTrue(waits.wait(10))
            teacher.close()
            self.assertIsInstance(done.exception(timeout=10), TeacherError)

    def test_a_closed_connection_cancels_calls(self):
        """Wherever the closing meets a call: gRPC, for threads and for asyncio, and the pool refuse work in their own ways."""
        server = Server(self, REPLY)
        closed = f"CANCELLED: {server.url}: the connection is closed"

        def call(teacher, token_ids):
            with self.assertRaisesRegex(TeacherError, closed):
                teacher.score(token_ids, 1, 1)
            with self.assertRaisesRegex(TeacherError, closed):
                teacher.generate([1, 2, 3], 1)

        async def call_async(token_ids):
            teacher = AsyncTeacher(server.url, retries=FAST)
            await teacher.info()
            await teacher.close()
            with self.assertRaisesRegex(TeacherError, closed):
                await teacher.score(token_ids, 1, 1)
            with self.assertRaisesRegex(TeacherError, closed):
                await teacher.generate([1, 2, 3], 1)

        for token_ids in ([1, 2, 3], [[1, 2, 3]] * 2):
            teacher = Teacher(server.url, retries=FAST)
            teacher.info()
            teacher._closed.set()
            teacher._channel.close()
            call(teacher, token_ids)  # close() has not come to the pool
            teacher.close()
            call(teacher, token_ids)
            asyncio.run(call_async(token_ids))


class ArgumentsTest(unittest.TestCase):
    def test_endpoints(self):
        for url in ("host:50051", "http://host:1", "grpc://host", "grpc://host:0", "grpc://host:65536", "grpc://a b:1"):
            with self.assertRaisesRegex(ValueError, "must be grpc://HOST:PORT"):
                Teacher(url)

    def test_requests(self):
        for arguments, problem in (
                (([1, 2], 0, 1), "start 0 must be at least 1"), (([1, 2], 2, 1), "start 2 must be .* less than the 2 token_ids"),
                (([], 1, 1), "start 1"), (([1.5, 2], 1, 1), "type float64"), (([1, -1], 1, 1), "id -1 outside"),
                (([1, 2**31], 1, 1), "id 2147483648 outside"), (([1, 2], 1, -1), "top_k -1"),
                (([1, 2, 3], 1.9, 1), "start 1.9 is not a whole number"), (([1, 2], 1, 2.9), "top_k 2.9"), (([[1]], 1, 1), "2 dimensions")):
            with self.assertRaisesRegex(ValueError, problem):
                ScoreRequest(*arguments)
        with self.assertRaisesRegex(ValueError, r"shape \(1, 2\), must be \[2, M\]"):
            ScoreRequest([1, 2, 3], 1, 1, candidate_ids=[[1, 2]])
        with self.assertRaisesRegex(ValueError, "temperature 0"):
            ScoreRequest([1, 2, 3], 1, 1, temperature=0)
        for name, value, problem in (
                ("allowed_token_ids", [], "empty"), ("allowed_token_ids", [5.9, 6.2], "type float64"),
                ("stop_token_ids", [2.5], "type float64"), ("logit_bias", {2**32 + 7: 100}, "id 4294967303 outside"),
                ("logit_bias", {7.5: 1}, "type float64"), ("top_k", 2**32 + 1, "is not a whole number in"),
                ("top_k", 1.5, "1.5"), ("seed", 1.5, "1.5"), ("min_new_tokens", 0.5, "0.5"), ("n", None, "None")):
            with self.assertRaisesRegex(ValueError, f"{name} .*{problem}"):
                GenerateRequest([1], 1, **{name: value})
        taken = GenerateRequest([1], 1, top_k=np.int64(-1), logit_bias={np.int64(7): 1}, stop_token_ids=[])
        self.assertEqual((taken.top_k, taken.logit_bias), (-1, {7: 1}))
        with Teacher("grpc://127.0.0.1:1") as teacher:
            with self.assertRaisesRegex(ValueError, "start has 1 entries for 2 sequences"):
                teacher.score([[1, 2], [1, 2]], [1], 1)
            with self.assertRaisesRegex(ValueError, "sequence 1: start 1"):
                teacher.score([[1, 2], [1]], 1, 1)
