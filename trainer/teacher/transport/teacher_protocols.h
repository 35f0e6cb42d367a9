// The protocols that a teacher may speak, one row each. Parsing, messages, help texts and clients
// follow from the row.
#pragma once

#include <memory>

#include "trainer/teacher/transport/http_protocol.h"

namespace taopd {

// vLLM: POST /v1/completions with prompt_logprobs. Two frontends with two shapes of reply.
std::unique_ptr<HttpProtocol> MakeVllmProtocol();
// SGLang: POST /generate with return_logprob.
std::unique_ptr<HttpProtocol> MakeSglangProtocol();

struct TeacherProtocol {
  const char* scheme;
  const char* tls_scheme;
  const char* server;                            // the server, in messages and help
  std::unique_ptr<HttpProtocol> (*make_http)();  // null: it is gRPC
};

inline constexpr TeacherProtocol kTeacherProtocols[] = {
    {"grpc", "grpcs", "taopd-teacher", nullptr},
    {"vllm+http", "vllm+https", "vLLM", &MakeVllmProtocol},
    {"sglang+http", "sglang+https", "SGLang", &MakeSglangProtocol},
};

}  // namespace taopd
