"""The Python client against a real taopd-teacher, whose model is deploy/examples/stories260K."""

import asyncio
import json
import unittest

import packages
import grpc
import numpy as np

import programs
from environment import temporary_path
from taopd import AsyncTeacher, RetryOptions, ScoreRequest, Teacher, TeacherError, Tls

GOLDEN = json.loads((packages.ROOT / "tests/integration/teacher/stories260K_greedy.json").read_text())
IDS, START, TOP_K = GOLDEN["ids"][:50], 10, 5
GOLDEN_TOLERANCE = 1e-4  # of float32 log-probs computed by another program
MASS_TOLERANCE = 1e-5    # of a sum of float32 probabilities
ALL = {"entropy": True, "rank": True, "support_stats": True, "dense": True}


class TeacherTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = temporary_path(cls)
        (cls.dir / "keys").write_text("right\n")
        cls.server = programs.Teacher(cls, cls.dir, "--max-logprobs", "512", "--api-key-file", cls.dir / "keys")

    def setUp(self):
        self.teacher = self.connect()

    def connect(self, **options):
        teacher = Teacher(self.server.endpoint, **{"api_key": "right", "retries": RetryOptions(outage_budget_s=0)} | options)
        self.addCleanup(teacher.close)
        return teacher

    def test_info(self):
        info = self.teacher.info()
        self.assertEqual((info.head_vocab_size, info.max_model_len, info.max_top_k), (512, 512, 512))
        self.assertEqual((info.dtype, len(info.revision), info.eos_token_ids), ("float32", 64, [2]))

    def test_scores(self):
        """Shapes, dtypes, and the numbers of transformers."""
        rows = len(IDS) - START
        candidates = np.tile([3, 8, 403], (rows, 1))
        scores = self.teacher.score(IDS, START, TOP_K, candidate_ids=candidates, **ALL)
        shapes = {"ids": (rows, TOP_K), "logprobs": (rows, TOP_K), "log_tail": (rows,), "sampled_logprobs": (rows,),
                  "sampled_ranks": (rows,), "entropy": (rows,), "candidate_logprobs": (rows, 3), "candidate_log_tail": (rows,),
                  "log_support_mass": (rows,), "log_sum_exp": (rows,), "dense_logprobs": (rows, 512)}
        for name, shape in shapes.items():
            array = getattr(scores, name)
            self.assertEqual(array.shape, shape, name)
            self.assertEqual(array.dtype, np.int32 if name in ("ids", "sampled_ranks") else np.float32, name)
        for row in range(rows):
            expected = GOLDEN["top5"][START + row - 1]
            self.assertEqual(scores.ids[row].tolist(), [id for id, _ in expected])
            np.testing.assert_allclose(scores.logprobs[row], [logprob for _, logprob in expected], atol=GOLDEN_TOLERANCE)
        dense, index = scores.dense_logprobs, np.arange(rows)
        np.testing.assert_array_equal(np.take_along_axis(dense, scores.ids, 1), scores.logprobs)
        np.testing.assert_array_equal(np.take_along_axis(dense, candidates, 1), scores.candidate_logprobs)
        np.testing.assert_array_equal(dense[index, IDS[START:]], scores.sampled_logprobs)
        np.testing.assert_array_equal((dense >= scores.sampled_logprobs[:, None]).sum(1), scores.sampled_ranks)
        np.testing.assert_allclose(np.exp(scores.logprobs).sum(1) + np.exp(scores.log_tail), 1, atol=MASS_TOLERANCE)
        np.testing.assert_allclose(np.exp(scores.log_support_mass), np.exp(scores.logprobs).sum(1), atol=MASS_TOLERANCE)
        outside = dense.copy()
        np.put_along_axis(outside, np.concatenate([scores.ids, candidates], 1), -np.inf, 1)
        np.testing.assert_allclose(np.exp(outside).sum(1), np.exp(scores.candidate_log_tail), atol=MASS_TOLERANCE)
        np.testing.assert_allclose(-(np.exp(dense) * dense).sum(1), scores.entropy, atol=GOLDEN_TOLERANCE)
        plain = self.teacher.score(np.array(IDS), START, 0)
        self.assertEqual((plain.ids.shape, plain.entropy, plain.dense_logprobs), ((rows, 0), None, None))

    def test_a_batch_has_the_bits_of_single_requests(self):
        batch = [IDS[:length] for length in (12, 50, 11, 33)] * 25
        several = self.teacher.score(batch, START, TOP_K)
        starts = [START + (i % 2) for i in range(4)]
        varied = self.teacher.score([IDS, IDS[:20], IDS[:30], IDS[:40]], starts, TOP_K,
                                    candidate_ids=[[[1]] * (length - start) for length, start in zip((50, 20, 30, 40), starts)])
        self.assertEqual([len(scores.log_tail) for scores in varied], [40, 9, 20, 29])
        for ids, scores in list(zip(batch, several))[:4]:
            single = self.teacher.score(ids, START, TOP_K)
            for name in ("ids", "logprobs", "log_tail", "sampled_logprobs"):
                np.testing.assert_array_equal(getattr(single, name), getattr(scores, name))
        self.assertEqual(len(several), 100)

    def test_stream(self):
        requests = (ScoreRequest(IDS[:length], START, 5000 if length == 20 else TOP_K, request_id=f"length {length}")
                    for length in range(11, 50))
        answers = {request.request_id: result for request, result in self.teacher.score_stream(requests)}
        self.assertEqual(len(answers), 39)
        refused = answers.pop("length 20")
        self.assertEqual((refused.code, str(refused)), (grpc.StatusCode.INVALID_ARGUMENT,
                         "INVALID_ARGUMENT: top_k 5000 must be between 0 and max_logprobs 512"))
        whole = self.teacher.score(IDS, START, TOP_K)
        for name, scores in answers.items():
            np.testing.assert_array_equal(scores.ids, whole.ids[:int(name.split()[1]) - START])

    def test_an_error_of_the_source_of_a_stream_is_the_callers(self):
        def requests():
            yield ScoreRequest(IDS, START, TOP_K)
            raise LookupError("row 2")

        async def stream():
            async with AsyncTeacher(self.server.endpoint, api_key="right") as teacher:
                async for _ in teacher.score_stream(requests()):
                    pass
        with self.assertRaisesRegex(LookupError, "row 2"):
            list(self.teacher.score_stream(requests()))
        with self.assertRaisesRegex(LookupError, "row 2"):
            asyncio.run(stream())

    def test_generate(self):
        prompt, num_new = IDS[:10], 20
        several = self.teacher.generate(prompt, num_new, n=3, temperature=0, ignore_eos=True, raw_logprobs=True)
        self.assertEqual([generation.index for generation in several], [0, 1, 2])
        for generation in several:
            self.assertEqual(generation.token_ids.tolist(), IDS[10:30])
            self.assertEqual(generation.finish_reason, "length")
            self.assertEqual(generation.revision, self.teacher.info().revision)
        sampled = self.teacher.score(IDS[:30], START, 0).sampled_logprobs
        np.testing.assert_allclose(several[0].raw_logprobs, sampled, atol=MASS_TOLERANCE)
        steps = list(self.teacher.generate_stream(prompt, num_new, temperature=0.8, seed=5, stream_tokens=True, ignore_eos=True))
        again = self.teacher.generate(prompt, num_new, temperature=0.8, seed=5, ignore_eos=True)[0]
        self.assertEqual(len(steps), num_new + 1)
        self.assertEqual([id for step in steps for id in step.token_ids.tolist()], again.token_ids.tolist())
        biased = self.teacher.generate(prompt, 3, temperature=0, logit_bias={77: 100.0}, stop_token_ids=[77])[0]
        self.assertEqual((biased.token_ids.tolist(), biased.finish_reason), ([77], "stop"))

    def test_errors_of_the_teacher(self):
        for call, code, text in (
                (lambda: self.teacher.score([1, 9999], 1, 1), grpc.StatusCode.INVALID_ARGUMENT, r"token_ids\[1\] is 9999"),
                (lambda: self.teacher.score([1, 2], 1, 1, expected_revision="x"), grpc.StatusCode.FAILED_PRECONDITION,
                 "expected_revision x is not served"),
                (lambda: self.teacher.generate([1], 1000), grpc.StatusCode.INVALID_ARGUMENT, "max_model_len 512"),
                (lambda: list(self.teacher.generate_stream([1], 5, top_p=2.0)), grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
                (lambda: self.connect(api_key="wrong").info(), grpc.StatusCode.UNAUTHENTICATED, self.server.endpoint)):
            with self.assertRaisesRegex(TeacherError, text) as caught:
                call()
            self.assertEqual(caught.exception.code, code)

    def test_async(self):
        async def client():
            async with AsyncTeacher(self.server.endpoint, api_key="right") as teacher:
                batch = await teacher.score([IDS, IDS[:20]], START, TOP_K, **ALL)
                streamed = [scores async for _, scores in teacher.score_stream([ScoreRequest(IDS, START, TOP_K)])]
                generated = await teacher.generate(IDS[:10], 20, temperature=0, ignore_eos=True)
                steps = [step async for step in teacher.generate_stream(IDS[:10], 3, stream_tokens=True, ignore_eos=True)]
                with self.assertRaisesRegex(TeacherError, "INVALID_ARGUMENT: .*9999"):
                    await teacher.score([1, 9999], 1, 1)
                return batch, streamed, generated, steps
        batch, streamed, generated, steps = asyncio.run(client())
        expected = self.teacher.score(IDS, START, TOP_K, **ALL)
        for name, array in vars(expected).items():
            if isinstance(array, np.ndarray):
                np.testing.assert_array_equal(getattr(batch[0], name), array)
        self.assertEqual(batch[1].ids.shape, (10, TOP_K))
        np.testing.assert_array_equal(streamed[0].logprobs, expected.logprobs)
        self.assertEqual((generated[0].token_ids.tolist(), len(steps)), (IDS[10:30], 4))


class OutageTest(unittest.TestCase):
    def setUp(self):
        self.dir = temporary_path(self)

    def test_a_restart_is_waited_for(self):
        first = programs.Teacher(self, self.dir, name="first")
        port = first.endpoint.rpartition(":")[2]
        with Teacher(first.endpoint, retries=RetryOptions(max_backoff_s=0.5)) as teacher:
            before = teacher.score(IDS, START, TOP_K)
            first.kill()
            second = programs.Program(self, programs.teacher_command("--port", "0", "--grpc-port", port), self.dir, "second")
            after = teacher.score(IDS, START, TOP_K)
            np.testing.assert_array_equal(before.logprobs, after.logprobs)
            self.assertIsNone(second.process.poll())

    def test_tls(self):
        programs.make_certificate(self.dir / "own", "localhost")
        certificate, key = self.dir / "own.crt", self.dir / "own.key"
        server = programs.Teacher(self, self.dir, "--ssl-certfile", certificate, "--ssl-keyfile", key)
        endpoint = server.endpoint.replace("grpc://", "grpcs://")
        with Teacher(endpoint, tls=Tls(ca_file=str(certificate))) as teacher:
            self.assertEqual(teacher.score(IDS, START, TOP_K).ids.shape, (40, TOP_K))
        for wrong in (endpoint, server.endpoint):
            with Teacher(wrong, retries=RetryOptions(outage_budget_s=0)) as teacher:
                with self.assertRaisesRegex(TeacherError, "UNAVAILABLE"):
                    teacher.info()
        with self.assertRaisesRegex(ValueError, "tls needs grpcs://"):
            Teacher(server.endpoint, tls=Tls())
        with self.assertRaisesRegex(ValueError, "belong together"):
            Teacher(endpoint, tls=Tls(cert_file="x"))
