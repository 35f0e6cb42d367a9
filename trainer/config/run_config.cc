#include "trainer/config/run_config.h"

#include <algorithm>
#include <cmath>

#include "common/io/file.h"

namespace taopd {

SettingCheck<double> Fraction() {
  return Must<double>("be in (0, 1]", [](double number) { return number > 0 && number <= 1; });
}

void RunConfig::Declare(SettingTable& keys) {
  keys.AddMutable("name", &name, "Name of the run, which its page shows.", NotEmpty());
  keys.AddMutable(
      "dir", &dir,
      "Directory to which the run writes everything. If it is empty, the directory is runs/NAME.");
  keys.Add("seed", &seed, "Seed of the order of the data, of rollouts and of evaluations.",
           AtLeast<int64_t>(0));
}

void ProcessConfig::DeclareProcess(SettingTable& keys) {
  keys.AddMutable("head_workspace_mb", &head_workspace_mb,
                  "Maximum memory for the logits of one chunk of rows, in MiB. On a GPU, the "
                  "student's loss takes at least what 512 rows need.",
                  MoreThan(0.0));
  keys.AddMutable("keep_checkpoints", &keep_checkpoints, "Number of newest checkpoints to keep.",
                  AtLeast<int64_t>(2));
  keys.AddMutable("disk_plan", &disk_plan,
                  "What to do if the checkpoints that the run will keep exceed the free space of "
                  "run.dir: refuse the run, warn (and refuse it only if not even one checkpoint "
                  "fits), or do nothing (off).");
  keys.AddMutable(
      "device", &device,
      "Device to compute on: cpu, cuda, cuda:N, or auto, which means cuda if there is a GPU.",
      NotEmpty());
  keys.AddMutable(
      "kernels", &kernels,
      "Kernels of this project, or compositions of LibTorch operations that compute the same: "
      "custom, composed, or auto, which means custom on a CPU and, on a GPU, those kernels that "
      "agree with their composition and are not slower in a check at the start.");
  keys.AddMutable("num_threads", &num_threads,
                  "Number of threads that compute. 0 means one per core.", AtLeast<int64_t>(0));
  keys.AddMutable("host", &host, "Address on which the HTTP port is opened.", NotEmpty());
  keys.AddMutable(
      "http_port", &http_port,
      "Port of the run's page, /status, /metrics and /healthz. 0 lets the system choose one.",
      Between<int64_t>(0, 65535));
  keys.AddMutable(
      "allowed_hosts", &allowed_hosts,
      "Host names by which clients may address the HTTP port, in addition to localhost, the "
      "address that it is bound to and this machine's own names. Requests for other names are "
      "refused, so no page of another site reaches the run.");
  keys.AddMutable(
      "token_env", &token_env,
      "Environment variable that holds the token that POST requests to the HTTP port must send as "
      "\"Authorization: Bearer TOKEN\". If the setting is empty, no token is required.");
}

void PromptConfig::DeclarePrompts(SettingTable& keys) {
  keys.Add("chat_template_kwargs", &chat_template_kwargs,
           "Variables for the chat template as a JSON object in quotes, such as "
           "'{\"enable_thinking\": false}'.");
  keys.Add("add_special_tokens", &add_special_tokens,
           "Let the tokenizer add its BOS to text prompts.");
  keys.Add("shuffle", &shuffle,
           "Draw a new order in each epoch. If it is false, prompts are used in the order of the "
           "files.");
}

void OptimizerConfig::Declare(SettingTable& keys) {
  keys.Add("lr", &lr, "Peak learning rate of AdamW.", AtLeast(0.0));
  keys.Add("betas", &betas, "AdamW's two decay rates.",
           Must<std::vector<double>>("be two numbers in [0, 1)", [](const auto& numbers) {
             const auto fits = [](double beta) { return beta >= 0 && beta < 1; };
             return numbers.size() == 2 && std::ranges::all_of(numbers, fits);
           }));
  keys.Add("eps", &eps, "AdamW's epsilon.", MoreThan(0.0));
  keys.Add("weight_decay", &weight_decay,
           "Decoupled weight decay of matrices. Vectors (norms, biases) are not decayed.",
           AtLeast(0.0));
  keys.Add(
      "max_grad_norm", &max_grad_norm,
      "Maximum norm of the gradients. Larger gradients are scaled down to it. 0 means no maximum.",
      AtLeast(0.0));
  keys.Add("schedule", &schedule, "Learning rate after the warm-up: constant, linear or cosine.");
  keys.Add("warmup_steps", &warmup_steps, "Number of steps of linear warm-up.",
           AtLeast<int64_t>(0));
  keys.Add("min_lr_ratio", &min_lr_ratio,
           "Share of lr that remains at the last step of the schedules linear and cosine.",
           Between(0.0, 1.0));
  keys.Add("moments", &moments,
           "Data type of AdamW's two moments: float32, or bfloat16 with stochastic rounding, which "
           "takes half the memory.");
  keys.Add("master", &master,
           "How bfloat16 weights are updated: through a float32 copy, which takes four bytes per "
           "parameter (float32), or directly, with stochastic rounding (none). float32 weights "
           "have no copy.");
  keys.AddMutable(
      "offload", &offload,
      "Keep AdamW's moments and float32 copies in the host's memory and update the weights there, "
      "for students whose training exceeds a GPU's memory. Refused if the device is a CPU.");
}

absl::Status OptimizerConfig::Check() const {
  if (min_lr_ratio == 0 || schedule != LrSchedule::kConstant) return absl::OkStatus();
  return InvalidArgument("optimizer.min_lr_ratio = ", min_lr_ratio,
                         " needs optimizer.schedule = linear or cosine, not constant");
}

void ServerAccess::DeclareAccess(SettingTable& keys) {
  keys.AddMutable(
      "api_key_env", &api_key_env,
      "Environment variable that holds the servers' API key. The key is sent as a bearer token.");
  keys.AddMutable("api_key_file", &api_key_file, "File whose first line is the API key.");
  keys.AddMutable("tls_ca_file", &tls_ca_file,
                  "PEM file of the authorities that sign the servers' certificates. If it is "
                  "empty, the system's list is used.");
  keys.AddMutable("tls_cert_file", &tls_cert_file,
                  "PEM file of this client's certificate, for servers that ask for one.");
  keys.AddMutable("tls_key_file", &tls_key_file, "PEM file of the key of tls_cert_file.");
}

absl::Status ServerAccess::CheckAccess(const char* section) const {
  if (tls_cert_file.empty() != tls_key_file.empty()) {
    return InvalidArgument(section, ".tls_cert_file and ", section,
                           ".tls_key_file must be given together or not at all");
  }
  if (!api_key_env.empty() && !api_key_file.empty()) {
    return InvalidArgument(section, ".api_key_env and ", section,
                           ".api_key_file: give one of them");
  }
  return absl::OkStatus();
}

absl::Status ServerAccess::ReadCredentials(const char* section,
                                           ClientCredentials* credentials) const {
  credentials->tls_ca_file = tls_ca_file;
  credentials->tls_cert_file = tls_cert_file;
  credentials->tls_key_file = tls_key_file;
  if (!api_key_env.empty()) {
    TAOPD_ASSIGN_OR_RETURN(credentials->api_key,
                           ApiKeyFrom(api_key_env, Concat(section, ".api_key_env")));
  } else if (const std::string& file = api_key_file; !file.empty()) {
    const auto text = ReadFileToString(file, 1 << 16);
    if (!text.ok()) return Annotate(text.status(), Concat(section, ".api_key_file"));
    credentials->api_key = text->substr(0, text->find_first_of("\r\n"));
    if (credentials->api_key.empty())
      return InvalidArgument(section, ".api_key_file: the first line of ", file, " is empty");
  }
  return absl::OkStatus();
}

void LoraSettings::Declare(SettingTable& keys) {
  keys.Add("rank", &rank,
           "Rank of the adapters that are trained instead of the weights. 0 means no adapters. See "
           "docs/lora.md.",
           Between<int64_t>(0, kMaxLoraRank));
  keys.Add("alpha", &alpha, "The product of an adapter's matrices is scaled by alpha / rank.",
           Must<double>("be finite and above 0",
                        [](double number) { return std::isfinite(number) && number > 0; }));
  keys.Add("target_modules", &target_modules,
           "Linear layers that get an adapter: some of q_proj, k_proj, v_proj, o_proj, gate_proj, "
           "up_proj and down_proj, or all-linear for all of them. Experts and the head get none.",
           CheckLoraTargets);
  keys.Add("modules_to_save", &modules_to_save,
           "Modules that are trained in full along with the adapters and stored with them: some of "
           "embed_tokens, lm_head, norm (all norms), model.norm (the final one), input_layernorm, "
           "post_attention_layernorm, q_norm and k_norm.",
           CheckModulesToSave);
  keys.Add("init", &init,
           "Distribution of the initial values of A (B is zero): PEFT's uniform distribution "
           "(default), or a normal distribution with standard deviation 1 / rank (gaussian).");
}

std::optional<LoraOptions> LoraSettings::Options(int64_t seed) const {
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

absl::StatusOr<LoraCounts> LoraSettings::Counts(const ModelConfig& model) const {
  if (!is_on()) return LoraCounts();
  return CountTrained(model, Options(0)->config);
}

absl::Status LoraWithTokenizer(const std::string& section) {
  return InvalidArgument(section, ".lora.rank is above 0 and ", section,
                         ".tokenizer is set: adapters keep the base's embedding and tokenizer; "
                         "leave one of them out");
}

}  // namespace taopd
