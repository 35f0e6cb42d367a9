// Settings that the commands train and sft share. See common/config/settings.h for how a setting is
// declared.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/config/kernel_mode.h"
#include "common/config/settings.h"
#include "common/model/config/lora_config.h"
#include "common/wire/client_credentials.h"

namespace taopd {

struct RunConfig {
  std::string name = "run";
  std::string dir;
  int64_t seed = 0;
  void Declare(SettingTable& keys);
  std::string Directory() const { return dir.empty() ? "runs/" + name : dir; }
};

// The consequence of a plan that needs more memory or disk than there is.
enum class PlanPolicy { kRefuse, kWarn, kOff };
inline EnumNames<PlanPolicy> NamesOf(PlanPolicy) {
  return {{PlanPolicy::kRefuse, "refuse"}, {PlanPolicy::kWarn, "warn"}, {PlanPolicy::kOff, "off"}};
}

// The HTTP port of a run (trainer/control/control_server.h).
struct ControlConfig {
  std::string host = "127.0.0.1";
  int64_t http_port = 0;
  std::vector<std::string> allowed_hosts;
  std::string token_env;
};

// Settings of trainer that both commands have.
struct ProcessConfig : ControlConfig {
  double head_workspace_mb = 256;
  int64_t keep_checkpoints = 2;
  PlanPolicy disk_plan = PlanPolicy::kWarn;
  std::string device = "auto";
  KernelMode kernels = KernelMode::kAuto;
  int64_t num_threads = 0;
  void DeclareProcess(SettingTable& keys);
};

// Settings of prompts that both commands have.
struct PromptConfig {
  std::string chat_template_kwargs;
  bool add_special_tokens = true;
  bool shuffle = true;
  void DeclarePrompts(SettingTable& keys);
};

// Returns the first of these settings of a section that differs from its default, or an empty text
// if there is none. REQUIRES: the section has settings of these names.
template <typename Section>
std::string FirstGiven(Section section, std::initializer_list<std::string_view> names) {
  Section defaults;
  const SettingTable given = DescribeSettings(section), unset = DescribeSettings(defaults);
  for (const std::string_view name : names) {
    size_t i = 0;
    while (i < given.settings().size() && given.settings()[i].path != name) ++i;
    TAOPD_CHECK(i < given.settings().size());
    const Setting& setting = given.settings()[i];
    if (SettingText(setting.pointer) != SettingText(unset.settings()[i].pointer))
      return setting.path;
  }
  return "";
}

// Accepts numbers in (0, 1].
SettingCheck<double> Fraction();

// The learning rate after the warm-up.
enum class LrSchedule { kConstant, kLinear, kCosine };
inline EnumNames<LrSchedule> NamesOf(LrSchedule) {
  return {{LrSchedule::kConstant, "constant"},
          {LrSchedule::kLinear, "linear"},
          {LrSchedule::kCosine, "cosine"}};
}
// The type of AdamW's moments.
enum class MomentsDtype { kFloat32, kBfloat16 };
inline EnumNames<MomentsDtype> NamesOf(MomentsDtype) {
  return {{MomentsDtype::kFloat32, "float32"}, {MomentsDtype::kBfloat16, "bfloat16"}};
}
// The numbers that take the updates of bfloat16 weights: a float32 copy or the weights themselves.
enum class MasterWeights { kFloat32, kNone };
inline EnumNames<MasterWeights> NamesOf(MasterWeights) {
  return {{MasterWeights::kFloat32, "float32"}, {MasterWeights::kNone, "none"}};
}

struct OptimizerConfig {
  double lr = 1e-6;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;
  LrSchedule schedule = LrSchedule::kConstant;
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;
  MomentsDtype moments = MomentsDtype::kFloat32;
  MasterWeights master = MasterWeights::kFloat32;
  bool offload = false;
  void Declare(SettingTable& keys);
  // Returns INVALID_ARGUMENT for a setting that `schedule` does not read.
  absl::Status Check() const;
  // Returns the bytes of AdamW's two moments and of the float32 copy of one parameter.
  int64_t StateBytesPerParameter(bool has_float32_weights) const {
    const bool has_copy = !has_float32_weights && master == MasterWeights::kFloat32;
    return (moments == MomentsDtype::kBfloat16 ? 4 : 8) + (has_copy ? 4 : 0);
  }
};

// The settings that give a client access to its servers. Several sections have them.
struct ServerAccess {
  std::string api_key_env;
  std::string api_key_file;
  std::string tls_ca_file;
  std::string tls_cert_file;
  std::string tls_key_file;
  void DeclareAccess(SettingTable& keys);
  // Returns INVALID_ARGUMENT, naming the settings with their `section`, if a certificate lacks its
  // key or a key its certificate, or if the API key comes from two places.
  absl::Status CheckAccess(const char* section) const;
  // Sets the certificates and the key. The key is the value of the environment variable or the
  // first line of the file; it is empty if neither is given. Returns an error that names the
  // setting with its `section` if the variable or the file holds no key.
  absl::Status ReadCredentials(const char* section, ClientCredentials* credentials) const;
};

inline EnumNames<LoraInit> NamesOf(LoraInit) {
  return {{LoraInit::kDefault, "default"}, {LoraInit::kGaussian, "gaussian"}};
}

// The settings of low-rank adapters (LoRA), with PEFT's names: student.lora of train and model.lora
// of sft.
struct LoraSettings {
  int64_t rank = 0;
  double alpha = 32;
  std::vector<std::string> target_modules = {kAllLinear};
  std::vector<std::string> modules_to_save;
  LoraInit init = LoraInit::kDefault;
  void Declare(SettingTable& keys);

  bool is_on() const { return rank > 0; }
  // Returns the adapters to train, or nullopt if there are none. `seed` is that of the run.
  std::optional<LoraOptions> Options(int64_t seed) const;
  // Returns the trained parameters of a model, all 0 without adapters, or errors of CountTrained.
  absl::StatusOr<LoraCounts> Counts(const ModelConfig& model) const;
};

// Returns the error for adapters of a student that takes over another tokenizer. They could not
// train its new rows. `section` is the settings' section.
absl::Status LoraWithTokenizer(const std::string& section);

}  // namespace taopd
