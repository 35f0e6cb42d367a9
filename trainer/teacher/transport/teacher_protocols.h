// The protocols that a teacher may speak, one row each, and endpoints as users write them. Parsing,
// messages, help texts and clients follow from the row.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/net/server_address.h"
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
  virtual absl::Status ExplainRefusal(const absl::Status& error, const TeacherRequest&) const {
    return error;
  }
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

// An endpoint as users write it: a scheme of the table, and an address. Over HTTP the port is
// optional, and so is the path before /v1 or /generate, the prefix. An IPv6 address is in brackets.
struct TeacherEndpoint : ServerAddress {
  std::string name;                           // as the user wrote it
  const TeacherProtocol* protocol = nullptr;  // a row of the table

  // Returns gRPC's name of it: "dns:///host:port" makes it use every address of the name.
  std::string GrpcTarget() const { return "dns:///" + address; }
};

// Returns INVALID_ARGUMENT, naming what is wrong, if the endpoint is malformed.
absl::StatusOr<TeacherEndpoint> ParseTeacherEndpoint(const std::string& text);

// The same for the endpoints of one teacher. Returns INVALID_ARGUMENT if the list is empty, names
// an endpoint twice or has endpoints of different protocols.
absl::StatusOr<std::vector<TeacherEndpoint>> ParseTeacherEndpoints(
    const std::vector<std::string>& endpoints);

}  // namespace taopd
