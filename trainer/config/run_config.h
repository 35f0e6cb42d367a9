// Settings that training and supervised fine-tuning share. See common/config/settings.h for how a
// setting is declared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/kernel_mode.h"
#include "common/config/settings.h"

namespace taopd {

struct RunConfig {
  std::string name = "run";
  std::string dir;
  int64_t seed = 0;
  void Visit(SettingVisitor& v) {
    v.Setting("name", &name, "Name of the run, for people and for the status page.", NotEmpty())
        .MayChange();
    v.Setting("dir", &dir, "Where everything is written; empty: runs/NAME.").MayChange();
    v.Setting("seed", &seed, "Seed of data order, rollouts and evaluation.", AtLeast<int64_t>(0));
  }
  std::string Directory() const { return dir.empty() ? "runs/" + name : dir; }
};

// The consequence of a plan that needs more memory or disk than there is.
enum class PlanPolicy { kRefuse, kWarn, kOff };
inline SettingWords<PlanPolicy> WordsOf(PlanPolicy) {
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
  std::string kernels = kKernelsAuto;
  int64_t num_threads = 0;
  void VisitProcess(SettingVisitor& v) {
    v.Setting("head_workspace_mb", &head_workspace_mb,
              "Maximum memory for the logits of one chunk of rows, in MiB. On a GPU, the student's "
              "loss takes what 512 rows need, if that is more.",
              MoreThan(0.0))
        .MayChange();
    v.Setting("keep_checkpoints", &keep_checkpoints, "Newest checkpoints to keep.",
              AtLeast<int64_t>(2))
        .MayChange();
    v.Setting("disk_plan", &disk_plan,
              "What to do when the checkpoints that the run will hold at once exceed the free "
              "space of run.dir: refuse the run, warn (and refuse it if not even one checkpoint "
              "fits), or off.")
        .MayChange();
    v.Setting("device", &device, "auto, cpu, cuda or cuda:1.", NotEmpty()).MayChange();
    v.Setting("kernels", &kernels,
              "Kernels of this project, or compositions of LibTorch operations that compute the "
              "same: custom, composed, or auto, which means custom on a CPU and, on a GPU, those "
              "kernels that agree with their composition and are not slower in a check at the "
              "start.",
              OneOf(KernelModes()))
        .MayChange();
    v.Setting("num_threads", &num_threads, "Threads for numerics; 0 = one per core.",
              AtLeast<int64_t>(0))
        .MayChange();
    v.Setting("host", &host, "Address that the HTTP port is opened on.", NotEmpty()).MayChange();
    v.Setting("http_port", &http_port,
              "Port of the run's page, /status, /metrics and /healthz; 0 = any free one.",
              Between<int64_t>(0, 65535))
        .MayChange();
    v.Setting("allowed_hosts", &allowed_hosts,
              "Names by which the HTTP port may be asked for, beside localhost, the address that "
              "it is bound to and this machine's own names; a request for another name is "
              "refused, so that no page of another site reaches the run.")
        .MayChange();
    v.Setting("token_env", &token_env,
              "Environment variable with the token that POST requests to the HTTP port must bring "
              "as \"Authorization: Bearer TOKEN\". Empty: none is asked for.")
        .MayChange();
  }
};

// Settings of prompts that both commands have.
struct PromptConfig {
  std::string chat_template_kwargs;
  bool add_special_tokens = true;
  bool shuffle = true;
  void VisitPrompts(SettingVisitor& v) {
    v.Setting("chat_template_kwargs", &chat_template_kwargs,
              "Variables for the chat template as a JSON object in quotes, such as "
              "'{\"enable_thinking\": false}'.");
    v.Setting("add_special_tokens", &add_special_tokens,
              "Let the tokenizer add its BOS to text prompts.");
    v.Setting("shuffle", &shuffle, "A new order each epoch; otherwise the files' order.");
  }
};

// Accepts numbers above 0 up to 1.
inline SettingCheck<double> Fraction() {
  return [](const double& number) {
    return number > 0 && number <= 1 ? absl::OkStatus() : InvalidArgument("must be in (0, 1]");
  };
}

// The learning rate after the warm-up.
enum class LrSchedule { kConstant, kLinear, kCosine };
inline SettingWords<LrSchedule> WordsOf(LrSchedule) {
  return {{LrSchedule::kConstant, "constant"},
          {LrSchedule::kLinear, "linear"},
          {LrSchedule::kCosine, "cosine"}};
}
// The type of AdamW's moments.
enum class MomentsDtype { kFloat32, kBfloat16 };
inline SettingWords<MomentsDtype> WordsOf(MomentsDtype) {
  return {{MomentsDtype::kFloat32, "float32"}, {MomentsDtype::kBfloat16, "bfloat16"}};
}
// The numbers that take the updates of bfloat16 weights: a float32 copy or the weights themselves.
enum class MasterWeights { kFloat32, kNone };
inline SettingWords<MasterWeights> WordsOf(MasterWeights) {
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
  void Visit(SettingVisitor& v) {
    v.Setting("lr", &lr, "Peak learning rate of AdamW.", AtLeast(0.0));
    v.Setting("betas", &betas, "AdamW's two decay rates.",
              SettingCheck<std::vector<double>>(CheckBetas));
    v.Setting("eps", &eps, "AdamW's epsilon.", MoreThan(0.0));
    v.Setting("weight_decay", &weight_decay,
              "Decoupled weight decay of matrices; vectors (norms, biases) have none.",
              AtLeast(0.0));
    v.Setting("max_grad_norm", &max_grad_norm, "Gradients are scaled down to this norm; 0 = never.",
              AtLeast(0.0));
    v.Setting("schedule", &schedule,
              "Learning rate after the warm-up: constant, linear or cosine.");
    v.Setting("warmup_steps", &warmup_steps, "Steps of linear warm-up.", AtLeast<int64_t>(0));
    v.Setting("min_lr_ratio", &min_lr_ratio, "Share of lr at the last step of linear and cosine.",
              Between(0.0, 1.0));
    v.Setting("moments", &moments,
              "Storage of AdamW's two moments: float32, or bfloat16 with stochastic rounding, "
              "which takes half the memory.");
    v.Setting("master", &master,
              "How bfloat16 weights are updated: float32, through a float32 copy of four bytes per "
              "parameter; none, directly, with stochastic rounding. float32 weights have no copy.");
    v.Setting("offload", &offload,
              "Keep AdamW's moments and float32 copies in the host's memory and update there, for "
              "students whose training exceeds a GPU; refused if the device is a CPU.")
        .MayChange();
  }
  // AdamW's two moments and the copy of weights that are not float32, for one parameter.
  int64_t StateBytesPerParameter(bool has_float32_weights) const {
    const bool has_copy = !has_float32_weights && master == MasterWeights::kFloat32;
    return (moments == MomentsDtype::kBfloat16 ? 4 : 8) + (has_copy ? 4 : 0);
  }
  static absl::Status CheckBetas(const std::vector<double>& betas) {
    const bool good =
        betas.size() == 2 && betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
    return good ? absl::OkStatus() : InvalidArgument("must be two numbers in [0, 1)");
  }
};

}  // namespace taopd
