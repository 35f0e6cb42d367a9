// The protocols that a teacher may speak, one row each. Parsing, messages, help texts and clients
// follow from the row.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// The differences between servers that score over HTTP: the paths, the requests and the shape of
// the replies. One object serves all endpoints of a teacher; it has no state, so any thread may
// call.
class HttpProtocol {
 public:
  virtual ~HttpProtocol() = default;

  // The path of the list of models, below the endpoint's prefix.
  static constexpr char kModelsPath[] = "/v1/models";
  virtual std::string score_path() const = 0;
  // The JSON text of a request.
  virtual std::string RequestBody(const TeacherRequest& request,
                                  const std::string& model) const = 0;
  // The scores of a 200 reply, which the caller verifies (verify_scores.h). The revision is empty
  // if the reply does not tell it. Returns DATA_LOSS for a reply of another shape.
  virtual absl::StatusOr<TeacherScores> ParseReply(const std::string& body,
                                                   const TeacherRequest& request,
                                                   const std::string& model) const = 0;
  // Makes the error of a refused request (400) say what to do. `error` holds the server's words.
  virtual absl::Status ExplainRefusal(const absl::Status& error,
                                      const TeacherRequest& request) const = 0;
  // The longest sequence that can be scored by a server with this max_model_len.
  virtual int64_t MaxTokens(int64_t max_model_len) const = 0;
  // Room for a reply of `num_tokens` tokens, of which `num_rows` are scored.
  virtual int64_t MaxReplyBytes(int64_t num_tokens, int64_t num_rows, int64_t top_k) const = 0;
};

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
