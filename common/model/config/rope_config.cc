#include "common/model/config/rope_config.h"

#include <set>

#include "common/model/config/config_fields.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;

struct RopeTypeRow {
  const char* name;
  RopeType type;
  std::set<std::string> members;  // members besides those that every type has
};

const std::vector<RopeTypeRow>& RopeTypes() {
  static const auto* const kTypes = new std::vector<RopeTypeRow>{
      {"default", RopeType::kDefault, {}},
      {"linear", RopeType::kLinear, {"factor"}},
      {"dynamic", RopeType::kDynamic, {"factor"}},
      {"yarn",
       RopeType::kYarn,
       {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "truncate"}},
      {"llama3",
       RopeType::kLlama3,
       {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}},
  };
  return *kTypes;
}

absl::StatusOr<const RopeTypeRow*> FindRopeType(const std::string& name) {
  std::string known;
  for (const RopeTypeRow& row : RopeTypes()) {
    if (name == row.name) return &row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Unimplemented("type \"", name, "\" is not implemented; known: ", known);
}

absl::Status CheckMembers(const Json& json, const RopeTypeRow& row) {
  for (const auto& [name, value] : json.items()) {
    if (name == "type" || name == "rope_type" || name == "rope_theta" ||
        name == "partial_rotary_factor" || row.members.contains(name)) {
      continue;
    }
    return Unimplemented("member \"", name, "\" is not implemented for type \"", row.name, "\"");
  }
  return absl::OkStatus();
}

absl::Status ReadYarn(const Json& json, RopeConfig* rope) {
  if (FindField(json, "attention_factor") != nullptr) {
    rope->attention_factor = 1.0;
    TAOPD_RETURN_IF_ERROR(
        ReadReal(json, "attention_factor", 0.0, kMaxFactor, &*rope->attention_factor));
  }
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "beta_fast", 1e-6, kMaxFactor, &rope->beta_fast));
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "beta_slow", 1e-6, kMaxFactor, &rope->beta_slow));
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "mscale", 0.0, kMaxFactor, &rope->mscale));
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "mscale_all_dim", 0.0, kMaxFactor, &rope->mscale_all_dim));
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "truncate", &rope->truncate));
  if (!(rope->theta > 1.0)) return InvalidArgument("rope_theta ", rope->theta, " is not above 1");
  return absl::OkStatus();
}

absl::Status ReadLlama3(const Json& json, RopeConfig* rope) {
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (FindField(json, key) == nullptr) return InvalidArgument(key, " is missing");
  }
  TAOPD_RETURN_IF_ERROR(
      ReadReal(json, "low_freq_factor", 1e-6, kMaxFactor, &rope->low_freq_factor));
  TAOPD_RETURN_IF_ERROR(
      ReadReal(json, "high_freq_factor", 1e-6, kMaxFactor, &rope->high_freq_factor));
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    return InvalidArgument("high_freq_factor ", rope->high_freq_factor,
                           " is not above low_freq_factor ", rope->low_freq_factor);
  }
  return absl::OkStatus();
}

// Reads the members of rope_scaling or rope_parameters.
absl::Status ReadRopeObject(const Json& json, int64_t max_position_embeddings, RopeConfig* rope,
                            double* partial_rotary_factor) {
  if (!json.is_object()) return InvalidArgument("not an object");
  std::string type = "default";
  TAOPD_RETURN_IF_ERROR(ReadString(json, "type", &type));
  TAOPD_RETURN_IF_ERROR(ReadString(json, "rope_type", &type));
  TAOPD_ASSIGN_OR_RETURN(const RopeTypeRow* row, FindRopeType(type));
  TAOPD_RETURN_IF_ERROR(CheckMembers(json, *row));
  rope->type = row->type;
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "rope_theta", 1.0, kMaxTheta, &rope->theta));
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "partial_rotary_factor", 0.0, 1.0, partial_rotary_factor));
  if (rope->type == RopeType::kDefault) return absl::OkStatus();

  TAOPD_RETURN_IF_ERROR(ReadReal(json, "factor", 1e-6, kMaxFactor, &rope->factor));
  if (rope->type == RopeType::kLinear || rope->type == RopeType::kDynamic) {
    if (FindField(json, "factor") == nullptr) return InvalidArgument("factor is missing");
    return absl::OkStatus();
  }
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "original_max_position_embeddings", 1, kMaxPositions,
                                &rope->original_max_position_embeddings));
  if (rope->original_max_position_embeddings == 0) {
    rope->original_max_position_embeddings = max_position_embeddings;
  }
  if (rope->type == RopeType::kLlama3) return ReadLlama3(json, rope);
  if (FindField(json, "factor") == nullptr) {
    rope->factor = static_cast<double>(max_position_embeddings) /
                   static_cast<double>(rope->original_max_position_embeddings);
  }
  return ReadYarn(json, rope);
}

}  // namespace

absl::StatusOr<RopeConfig> ReadRopeConfig(const Json& json, int64_t max_position_embeddings) {
  RopeConfig rope;
  double partial_rotary_factor = 1.0;
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "rope_theta", 1.0, kMaxTheta, &rope.theta));
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "partial_rotary_factor", 0.0, 1.0, &partial_rotary_factor));
  // This member belongs to the whole model; transformers lets it override the one inside the
  // rotation.
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "original_max_position_embeddings", 1, kMaxPositions,
                                &rope.original_max_position_embeddings));
  const int64_t outer_original = rope.original_max_position_embeddings;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* object = FindField(json, key);
    if (object == nullptr || (object->is_object() && object->empty())) continue;
    TAOPD_RETURN_IF_ERROR(Annotate(
        ReadRopeObject(*object, max_position_embeddings, &rope, &partial_rotary_factor), key));
    break;
  }
  if (outer_original > 0) rope.original_max_position_embeddings = outer_original;
  if (partial_rotary_factor != 1.0) {
    return Unimplemented("partial_rotary_factor ", partial_rotary_factor,
                         " is not implemented, only 1");
  }
  return rope;
}

void WriteRopeConfig(const RopeConfig& rope, Json* json) {
  (*json)["rope_theta"] = rope.theta;
  if (rope.type == RopeType::kDefault) return;
  Json& scaling = (*json)["rope_scaling"];
  for (const RopeTypeRow& row : RopeTypes()) {
    if (row.type == rope.type) scaling["rope_type"] = row.name;
  }
  scaling["factor"] = rope.factor;
  if (rope.type == RopeType::kLinear || rope.type == RopeType::kDynamic) return;
  scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  if (rope.type == RopeType::kLlama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
    return;
  }
  if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
  scaling["beta_fast"] = rope.beta_fast;
  scaling["beta_slow"] = rope.beta_slow;
  if (rope.mscale != 0.0) scaling["mscale"] = rope.mscale;
  if (rope.mscale_all_dim != 0.0) scaling["mscale_all_dim"] = rope.mscale_all_dim;
  scaling["truncate"] = rope.truncate;
}

}  // namespace taopd
