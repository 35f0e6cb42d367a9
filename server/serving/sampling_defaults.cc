#include "server/serving/sampling_defaults.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/engine/sampling/sampling_fields.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd {

absl::StatusOr<SamplingParams> LoadSamplingDefaults(const std::string& model_dir) {
  SamplingParams defaults;
  const std::string path = model_dir + "/generation_config.json";
  if (!FileExists(path)) return defaults;
  TAOPD_ASSIGN_OR_RETURN(const nlohmann::json config, ReadJsonFile(path));
  if (!config.is_object()) return InvalidArgument(path, ": must be a JSON object");
  for (const SamplingField& field : SamplingFields()) {
    const auto found = config.find(field.name);
    if (!field.in_generation_config || found == config.end() || found->is_null()) continue;
    const double value = found->is_number() ? found->get<double>() : NAN;
    if (std::isnan(value) || (field.is_integer && value != std::floor(value))) {
      return InvalidArgument(path, ": ", field.name, " is ", found->dump(), ": must be ",
                             field.is_integer ? "an integer" : "a number");
    }
    if (const absl::Status set = SetSamplingField(field, value, &defaults); !set.ok())
      return InvalidArgument(path, ": ", set.message());
  }
  return defaults;
}

}  // namespace taopd
