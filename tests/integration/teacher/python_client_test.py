"""Clients made from the protos alone, by grpcio-tools: of our service and of vLLM's for gateways.

Usage: python_client_test.py TAOPD_TEACHER SOURCE_DIR. Exits 0 when all is well, 1 otherwise.
"""

import importlib
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import grpc
from grpc_tools import protoc


def compile_proto(source_dir, out_dir, name):
    """The modules of proto/NAME.proto: messages and stubs."""
    arguments = ["protoc", f"-I{source_dir}", f"--python_out={out_dir}", f"--grpc_python_out={out_dir}",
                 f"proto/{name}.proto"]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed")
    module = "proto." + name.replace("/", ".")
    return importlib.import_module(module + "_pb2"), importlib.import_module(module + "_pb2_grpc")


def start_teacher(binary, source_dir, ready_file):
    teacher = subprocess.Popen([binary, "--model", f"{source_dir}/deploy/examples/stories260K", "--port", "0",
                                "--grpc-port", "0", "--ready-file", ready_file, "--num-threads", "1"])
    while not os.path.exists(ready_file):
        if teacher.poll() is not None:
            raise RuntimeError(f"taopd-teacher ended with {teacher.returncode}")
        time.sleep(0.005)
    return teacher, json.loads(pathlib.Path(ready_file).read_text())


def check_generation(pb, stub):
    golden = json.loads(pathlib.Path(__file__).with_name("stories260K_greedy.json").read_text())
    ids, num_prompt, num_new = golden["ids"], 10, 20
    request = pb.GenerateRequest(request_id="python", token_ids=ids[:num_prompt], n=2, max_new_tokens=num_new,
                                 sampling=pb.SamplingOptions(temperature=0), ignore_eos=True)
    sequences = {message.index: message for message in stub.Generate(request)}
    assert sorted(sequences) == [0, 1], sequences
    for message in sequences.values():
        assert message.finish_reason == pb.FINISH_REASON_LENGTH
        assert list(message.token_ids) == ids[num_prompt:num_prompt + num_new], message
    # The log-probs are those that a score of the same tokens gives.
    scores = stub.Score(pb.ScoreRequest(token_ids=ids[:num_prompt + num_new], score_start=num_prompt, top_k=1))
    for generated, scored in zip(sequences[0].logprobs, scores.sampled_logprobs):
        assert abs(generated - scored) < 1e-5, (generated, scored)


def check_scores(pb, stub):
    info = stub.GetTeacherInfo(pb.GetTeacherInfoRequest())
    assert info.head_vocab_size == 512 and info.protocol_version == 1, info
    golden = json.loads(pathlib.Path(__file__).with_name("stories260K_greedy.json").read_text())
    ids, k, start = golden["ids"][:50], 5, 10
    request = pb.ScoreRequest(request_id="python", token_ids=ids, score_start=start, top_k=k,
                              expected_revision=info.revision, options=pb.ScoreOptions(rank=True, entropy=True))
    response = stub.Score(request)
    num_rows = len(ids) - start
    assert response.request_id == "python" and response.revision == info.revision
    assert len(response.ids) == len(response.logprobs) == num_rows * k
    for row in range(num_rows):
        expected = golden["top5"][start + row - 1]
        total = math.exp(response.log_tail[row])
        for j in range(k):
            assert response.ids[row * k + j] == expected[j][0], (row, j)
            assert abs(response.logprobs[row * k + j] - expected[j][1]) < 1e-4, (row, j)
            total += math.exp(response.logprobs[row * k + j])
        assert abs(total - 1) < 1e-5, total
        assert response.entropy[row] > 0
    streamed = list(stub.ScoreStream(iter([request] * 3)))
    assert [r.response.logprobs for r in streamed] == [response.logprobs] * 3
    return len(response.ids)


def check_gateway(pb, stub, teacher_pb, teacher_stub):
    """What a gateway of vLLM's engine protocol asks for, beside our own service."""
    assert stub.HealthCheck(pb.HealthCheckRequest()).healthy
    model = stub.GetModelInfo(pb.GetModelInfoRequest())
    assert model.vocab_size == 512 and model.max_context_length == 512 and model.model_type == "llama", model
    assert stub.GetServerInfo(pb.GetServerInfoRequest()).server_type == "vllm-grpc"
    golden = json.loads(pathlib.Path(__file__).with_name("stories260K_greedy.json").read_text())
    ids, num_prompt, num_new, k = golden["ids"], 10, 20, 5
    request = pb.GenerateRequest(
        request_id="gateway", tokenized=pb.TokenizedInput(input_ids=ids[:num_prompt]),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True, logprobs=k,
                                          prompt_logprobs=k))
    (answer,) = stub.Generate(request)
    complete = answer.complete
    assert list(complete.output_ids) == ids[num_prompt:num_prompt + num_new], complete
    assert complete.finish_reason == "length" and complete.prompt_tokens == num_prompt
    # The same numbers as our own scores, in the prompt and beyond it.
    scores = teacher_stub.Score(teacher_pb.ScoreRequest(token_ids=ids[:num_prompt + num_new], score_start=1, top_k=k))
    prompt, output = complete.input_logprobs, complete.output_logprobs
    assert not prompt.token_logprobs[0].HasField("value")
    values = [token.value for token in prompt.token_logprobs[1:]] + list(output.token_logprobs)
    tops = list(prompt.top_logprobs[1:]) + list(output.top_logprobs)
    assert len(values) == len(tops) == num_prompt + num_new - 1
    for row, (value, top) in enumerate(zip(values, tops)):
        assert abs(value - scores.sampled_logprobs[row]) < 1e-5, row
        assert list(top.token_ids) == list(scores.ids[row * k:(row + 1) * k]), row
        assert all(abs(a - b) < 1e-5 for a, b in zip(top.values, scores.logprobs[row * k:(row + 1) * k])), row
    request.stream = True
    request.sampling_params.ClearField("prompt_logprobs")
    messages = list(stub.Generate(request))
    assert [id for m in messages if m.HasField("chunk") for id in m.chunk.token_ids] == list(complete.output_ids)
    assert messages[-1].complete.finish_reason == "length"


def check_refusal(pb, stub):
    try:
        stub.Score(pb.ScoreRequest(token_ids=[1, 512], score_start=1))
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
        assert "token_ids[1] is 512" in error.details(), error
        return
    raise AssertionError("an id outside of the vocabulary was accepted")


def main():
    binary, source_dir = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        sys.path.insert(0, directory)
        pb, pb_grpc = compile_proto(source_dir, directory, "taopd/v1/teacher")
        engine_pb, engine_grpc = compile_proto(source_dir, directory, "vllm/engine")
        teacher, ready = start_teacher(binary, source_dir, os.path.join(directory, "ready.json"))
        try:
            with grpc.insecure_channel(f"127.0.0.1:{ready['grpc_port']}") as channel:
                stub = pb_grpc.TeacherStub(channel)
                print("scored", check_scores(pb, stub), "ids")
                check_generation(pb, stub)
                check_refusal(pb, stub)
                check_gateway(engine_pb, engine_grpc.VllmEngineStub(channel), pb, stub)
            teacher.send_signal(signal.SIGTERM)
            assert teacher.wait() == 0, teacher.returncode
        finally:
            if teacher.poll() is None:
                teacher.kill()
                teacher.wait()


if __name__ == "__main__":
    main()
