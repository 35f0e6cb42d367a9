"""Clients made from the protos alone, by grpcio-tools: of our service and of vLLM's for gateways."""

import importlib
import json
import sys
import unittest

import packages
import grpc
import numpy as np
from grpc_tools import protoc

import programs
from environment import temporary_path

IDS = json.loads((packages.ROOT / "tests/integration/teacher/stories260K_greedy.json").read_text())["ids"]
NUM_PROMPT, NUM_NEW, TOP_K = 10, 20, 5
TOLERANCE = 1e-5  # of log-probs that the same program sends in another form


def compile_proto(out_dir, name):
    """The modules of proto/NAME.proto: messages and stubs."""
    arguments = ["protoc", f"-I{packages.ROOT}", f"--python_out={out_dir}", f"--grpc_python_out={out_dir}",
                 f"proto/{name}.proto"]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed")
    module = "proto." + name.replace("/", ".")
    return importlib.import_module(module + "_pb2"), importlib.import_module(module + "_pb2_grpc")


class ProtosTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        path = temporary_path(cls)
        sys.path.insert(0, str(path))
        cls.pb, stubs = compile_proto(path, "taopd/v1/teacher")
        cls.gateway_pb, gateway_stubs = compile_proto(path, "vllm/engine")
        server = programs.Teacher(cls, path)
        channel = grpc.insecure_channel(server.endpoint.removeprefix("grpc://"))
        cls.addClassCleanup(channel.close)
        cls.stub, cls.gateway = stubs.TeacherStub(channel), gateway_stubs.VllmEngineStub(channel)

    def test_every_method(self):
        """teacher_test.py checks the numbers."""
        info = self.stub.GetTeacherInfo(self.pb.GetTeacherInfoRequest())
        self.assertEqual((info.head_vocab_size, info.protocol_version), (512, 1))
        request = self.pb.ScoreRequest(request_id="python", token_ids=IDS[:50], score_start=NUM_PROMPT, top_k=TOP_K)
        response = self.stub.Score(request)
        self.assertEqual((response.request_id, response.revision, len(response.ids)), ("python", info.revision, 40 * TOP_K))
        streamed = list(self.stub.ScoreStream(iter([request] * 3)))
        self.assertEqual([each.response.logprobs for each in streamed], [response.logprobs] * 3)
        request = self.pb.GenerateRequest(token_ids=IDS[:NUM_PROMPT], n=2, max_new_tokens=NUM_NEW,
                                          sampling=self.pb.SamplingOptions(temperature=0), ignore_eos=True)
        generated = {message.index: list(message.token_ids) for message in self.stub.Generate(request)}
        self.assertEqual(generated, dict.fromkeys((0, 1), IDS[NUM_PROMPT:NUM_PROMPT + NUM_NEW]))

    def test_gateway(self):
        """What a gateway of vLLM's engine protocol asks for, beside our own service."""
        pb, stub = self.gateway_pb, self.gateway
        self.assertTrue(stub.HealthCheck(pb.HealthCheckRequest()).healthy)
        model = stub.GetModelInfo(pb.GetModelInfoRequest())
        self.assertEqual((model.vocab_size, model.max_context_length, model.model_type), (512, 512, "llama"))
        self.assertEqual(stub.GetServerInfo(pb.GetServerInfoRequest()).server_type, "vllm-grpc")
        request = pb.GenerateRequest(
            request_id="gateway", tokenized=pb.TokenizedInput(input_ids=IDS[:NUM_PROMPT]),
            sampling_params=pb.SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True, logprobs=TOP_K,
                                              prompt_logprobs=TOP_K))
        (answer,) = stub.Generate(request)
        complete = answer.complete
        self.assertEqual(list(complete.output_ids), IDS[NUM_PROMPT:NUM_PROMPT + NUM_NEW])
        self.assertEqual((complete.finish_reason, complete.prompt_tokens), ("length", NUM_PROMPT))
        # The same numbers as our own scores, in the prompt and beyond it.
        scores = self.stub.Score(self.pb.ScoreRequest(token_ids=IDS[:NUM_PROMPT + NUM_NEW], score_start=1, top_k=TOP_K))
        prompt, output = complete.input_logprobs, complete.output_logprobs
        self.assertFalse(prompt.token_logprobs[0].HasField("value"))
        values = [token.value for token in prompt.token_logprobs[1:]] + list(output.token_logprobs)
        tops = list(prompt.top_logprobs[1:]) + list(output.top_logprobs)
        np.testing.assert_allclose(values, scores.sampled_logprobs, rtol=0, atol=TOLERANCE)
        self.assertEqual([id for top in tops for id in top.token_ids], list(scores.ids))
        np.testing.assert_allclose([value for top in tops for value in top.values], scores.logprobs, rtol=0, atol=TOLERANCE)
        request.stream = True
        request.sampling_params.ClearField("prompt_logprobs")
        messages = list(stub.Generate(request))
        chunks = [message.chunk for message in messages if message.HasField("chunk")]
        self.assertEqual([id for chunk in chunks for id in chunk.token_ids], list(complete.output_ids))
        self.assertEqual(messages[-1].complete.finish_reason, "length")
