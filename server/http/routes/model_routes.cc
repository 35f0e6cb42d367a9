#include "server/http/routes/model_routes.h"

#include <nlohmann/json.hpp>

#include "server/options/version.h"

namespace taopd {
namespace {

std::string ModelsJson(const ServedModel& model) {
  nlohmann::ordered_json permission;
  permission["id"] = "modelperm-" + model.revision.substr(0, 32);
  permission["object"] = "model_permission";
  permission["created"] = model.created_unix_s;
  permission["allow_create_engine"] = false;
  permission["allow_sampling"] = true;
  permission["allow_logprobs"] = true;
  permission["allow_search_indices"] = false;
  permission["allow_view"] = true;
  permission["allow_fine_tuning"] = false;
  permission["organization"] = "*";
  permission["group"] = nullptr;
  permission["is_blocking"] = false;
  nlohmann::ordered_json entry;
  entry["id"] = model.name;
  entry["object"] = "model";
  entry["created"] = model.created_unix_s;
  entry["owned_by"] = "taopd";
  entry["root"] = model.root;
  entry["parent"] = nullptr;
  entry["max_model_len"] = model.limits.max_model_len;
  entry["permission"] = nlohmann::ordered_json::array({permission});
  nlohmann::ordered_json body;
  body["object"] = "list";
  body["data"] = nlohmann::ordered_json::array({entry});
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

Routes ModelRoutes(ServingState* state) {
  const auto version = [](const std::string&, const Caller&) {
    nlohmann::json body;
    body["version"] = kTeacherVersion;
    return JsonResponse(body.dump());
  };
  const auto models = [state](const std::string&, const Caller&) {
    const auto model = state->Admit();
    if (!model.ok()) return ErrorResponse(FromStatus(model.status()));
    return JsonResponse(ModelsJson(**model));
  };
  return {{"GET", "/version", RouteKind::kWork, version},
          {"GET", "/v1/models", RouteKind::kWork, models}};
}

}  // namespace taopd
