#include "trainer/teacher/transport/teacher_protocols.h"

#include <utility>

#include "common/io/jsonl.h"

namespace taopd {

int64_t MaxReplyValues(const TeacherRequest& request) {
  const auto num_tokens = static_cast<int64_t>(request.token_ids.size());
  return kMaxJsonValues + num_tokens * (4 * (int64_t{request.top_k} + 1) + 1);
}

absl::StatusOr<TeacherEndpoint> ParseTeacherEndpoint(const std::string& text) {
  TAOPD_ASSIGN_OR_RETURN(auto parsed, ParseEndpoint("teacher", kTeacherProtocols, text));
  TeacherEndpoint endpoint{std::move(parsed.server), text, parsed.protocol};
  // People copy OpenAI's form of the address.
  if (endpoint.prefix.ends_with("/v1")) endpoint.prefix.resize(endpoint.prefix.size() - 3);
  return endpoint;
}

absl::StatusOr<std::vector<TeacherEndpoint>> ParseTeacherEndpoints(
    const std::vector<std::string>& endpoints) {
  if (endpoints.empty()) return InvalidArgument("no teacher endpoint is given");
  std::vector<TeacherEndpoint> parsed;
  for (const std::string& text : endpoints) {
    TAOPD_ASSIGN_OR_RETURN(TeacherEndpoint endpoint, ParseTeacherEndpoint(text));
    for (const TeacherEndpoint& other : parsed) {
      if (other.address == endpoint.address && other.prefix == endpoint.prefix) {
        return InvalidArgument("teacher endpoint \"", text, "\" is given twice");
      }
      if (other.protocol != endpoint.protocol) {
        return InvalidArgument("teacher endpoints \"", other.name, "\" and \"", text,
                               "\" speak different protocols: one teacher has one");
      }
    }
    parsed.push_back(std::move(endpoint));
  }
  return parsed;
}

}  // namespace taopd
