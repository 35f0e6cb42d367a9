// The settings of low-rank adapters (LoRA), with PEFT's names: student.lora of training and
// model.lora of supervised fine-tuning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "common/model/config/lora_config.h"

namespace taopd {

inline SettingWords<LoraInit> WordsOf(LoraInit) {
  return {{LoraInit::kDefault, "default"}, {LoraInit::kGaussian, "gaussian"}};
}

struct LoraSettings {
  int64_t rank = 0;
  double alpha = 32;
  std::vector<std::string> target_modules = {kAllLinear};
  LoraInit init = LoraInit::kDefault;
  void Visit(SettingVisitor& v) {
    v.Setting("rank", &rank,
              "Rank of the adapters that are trained instead of the weights; 0 = no adapters. See "
              "docs/lora.md.",
              AtLeast<int64_t>(0));
    v.Setting("alpha", &alpha, "The product of an adapter's matrices is scaled by alpha / rank.",
              MoreThan(0.0));
    v.Setting("target_modules", &target_modules,
              "Linear layers that get an adapter: some of q_proj, k_proj, v_proj, o_proj, "
              "gate_proj, up_proj and down_proj, or all-linear for all of them. Experts and the "
              "head have none.",
              SettingCheck<std::vector<std::string>>(CheckLoraTargets));
    v.Setting("init", &init,
              "Initial values of A (B is zero): default, PEFT's uniform ones; gaussian, normal "
              "with standard deviation 1 / rank.");
  }

  bool is_on() const { return rank > 0; }
  // Returns the adapters to train, or nullopt if there are none. `seed` is that of the run.
  std::optional<LoraOptions> Options(int64_t seed) const {
    if (!is_on()) return std::nullopt;
    LoraOptions options;
    options.config.rank = rank;
    options.config.alpha = alpha;
    options.config.target_modules = target_modules;
    options.config.init = init;
    options.seed = static_cast<uint64_t>(seed);
    return options;
  }
  // Returns the number of values of all adapters of a model, 0 without adapters. Errors are those
  // of ResolveTargetModules.
  absl::StatusOr<int64_t> NumParameters(const ModelConfig& model) const {
    if (!is_on()) return 0;
    LoraConfig lora = Options(0)->config;
    TAOPD_ASSIGN_OR_RETURN(lora.target_modules, ResolveTargetModules(target_modules, model));
    return NumLoraParameters(model, lora);
  }
};

// Returns the error for adapters of a student that takes over another tokenizer, whose new rows
// could not be trained. `section` is the settings' section.
inline absl::Status LoraWithTokenizer(const std::string& section) {
  return InvalidArgument(section, ".lora.rank is above 0 and ", section,
                         ".tokenizer is set: adapters keep the base's embedding and tokenizer; "
                         "leave one of them out");
}

}  // namespace taopd
