// The settings of low-rank adapters (LoRA), with PEFT's names: student.lora of training and
// model.lora of supervised fine-tuning.
#pragma once

#include <cmath>
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
  std::vector<std::string> modules_to_save;
  LoraInit init = LoraInit::kDefault;
  void Visit(SettingVisitor& v) {
    v.Setting("rank", &rank,
              "Rank of the adapters that are trained instead of the weights; 0 = no adapters. See "
              "docs/lora.md.",
              Between<int64_t>(0, kMaxLoraRank));
    v.Setting("alpha", &alpha, "The product of an adapter's matrices is scaled by alpha / rank.",
              SettingCheck<double>([](const double& number) {
                return std::isfinite(number) && number > 0
                           ? absl::OkStatus()
                           : InvalidArgument("must be finite and above 0");
              }));
    v.Setting("target_modules", &target_modules,
              "Linear layers that get an adapter: some of q_proj, k_proj, v_proj, o_proj, "
              "gate_proj, up_proj and down_proj, or all-linear for all of them. Experts and the "
              "head have none.",
              SettingCheck<std::vector<std::string>>(CheckLoraTargets));
    v.Setting("modules_to_save", &modules_to_save,
              "Modules that are trained in full beside the adapters and stored with them: some of "
              "embed_tokens, lm_head, norm (all norms), model.norm (the final one), "
              "input_layernorm, post_attention_layernorm, q_norm and k_norm.",
              SettingCheck<std::vector<std::string>>(CheckModulesToSave));
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
    options.config.modules_to_save = modules_to_save;
    options.config.init = init;
    options.seed = static_cast<uint64_t>(seed);
    return options;
  }
  // Returns what is trained of a model, all 0 without adapters. Errors are those of CountTrained.
  absl::StatusOr<LoraCounts> Counts(const ModelConfig& model) const {
    if (!is_on()) return LoraCounts();
    return CountTrained(model, Options(0)->config);
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
