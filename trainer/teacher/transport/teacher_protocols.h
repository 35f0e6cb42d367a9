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
  // Returns the JSON text of a request.
  virtual std::string RequestBody(const TeacherRequest& request,
                                  const std::string& model) const = 0;
  // Returns the scores of a 200 reply, which the caller verifies (verify_scores.h). Returns
  // DATA_LOSS for a reply of another shape.
  virtual absl::StatusOr<TeacherScores> ParseReply(const std::string& body,
                                                   const TeacherRequest& request,
                                                   const std::string& model) const = 0;
  // Returns the error of a refused request (400), with advice if there is any. `error` holds the
  // server's words.
  virtual absl::Status ExplainRefusal(const absl::Status& error, const TeacherRequest&) const {
    return error;
  }
  // Returns the largest size of a reply.
  virtual int64_t MaxReplyBytes(const TeacherRequest& request) const = 0;
};

// Returns ParseJson's limit for a 200 reply, whose entries take up to four values each.
int64_t MaxReplyValues(const TeacherRequest& request);

// vLLM: POST /v1/completions with prompt_logprobs. Its two frontends reply in different shapes.
std::unique_ptr<HttpProtocol> MakeVllmProtocol();
// SGLang: POST /generate with return_logprob.
std::unique_ptr<HttpProtocol> MakeSglangProtocol();

struct TeacherProtocol {
  const char* scheme;
  const char* tls_scheme;
  const char* server;                            // the server, in messages and help
  std::unique_ptr<HttpProtocol> (*make_http)();  // null for gRPC
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

  // Returns "dns:///host:port", with which gRPC uses every address of the host's name.
  std::string GrpcTarget() const { return "dns:///" + address; }
};

// Returns INVALID_ARGUMENT, naming what is wrong, if the endpoint is malformed.
absl::StatusOr<TeacherEndpoint> ParseTeacherEndpoint(const std::string& text);

// Parses the endpoints of one teacher. Also returns INVALID_ARGUMENT if the list is empty, names an
// endpoint twice or has endpoints of different protocols.
absl::StatusOr<std::vector<TeacherEndpoint>> ParseTeacherEndpoints(
    const std::vector<std::string>& endpoints);

}  // namespace taopd
