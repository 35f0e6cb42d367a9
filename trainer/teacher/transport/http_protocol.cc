#include "trainer/teacher/transport/http_protocol.h"

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/io/jsonl.h"

namespace taopd {

std::unique_ptr<HttpProtocol> MakeHttpProtocol(TeacherProtocol protocol) {
  TAOPD_CHECK(protocol != TeacherProtocol::kGrpc);
  return protocol == TeacherProtocol::kVllm ? MakeVllmProtocol() : MakeSglangProtocol();
}

absl::StatusOr<ListedModel> FindListedModel(const std::string& body, const std::string& wanted) {
  const auto reply = ParseJson(body, "the list of models");
  if (!reply.ok()) return DataLoss(reply.status().message());
  if (!reply->is_object() || !reply->contains("data") || !reply->at("data").is_array()) {
    return DataLoss("the list of models has no data");
  }
  std::string known;
  for (const nlohmann::json& entry : reply->at("data")) {
    if (!entry.is_object() || !entry.contains("id") || !entry.at("id").is_string()) {
      return DataLoss("the list of models has an entry without an id");
    }
    ListedModel model;
    model.id = entry.at("id").get<std::string>();
    if (!wanted.empty() && model.id != wanted) {
      known += (known.empty() ? "" : ", ") + model.id;
      continue;
    }
    const auto length = entry.find("max_model_len");
    if (length != entry.end() && length->is_number_integer()) {
      model.max_model_len = length->get<int64_t>();
      if (model.max_model_len < 2) {
        return DataLoss("the model's max_model_len ", model.max_model_len, " is below 2");
      }
    }
    return model;
  }
  if (wanted.empty()) return FailedPrecondition("the server lists no model");
  return FailedPrecondition("the server does not serve the model \"", wanted, "\" but ",
                            known.empty() ? "none" : known);
}

}  // namespace taopd
