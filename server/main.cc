// taopd-teacher: scores and generates over gRPC and over HTTP in the protocols of vLLM, OpenAI and
// SGLang.
#include <absl/time/clock.h>
#include <signal.h>

#include <iostream>
#include <memory>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/run_main.h"
#include "common/base/thread_waits.h"
#include "common/config/yaml.h"
#include "common/engine/engine_factory.h"
#include "common/engine/parallel/worker_processes.h"
#include "common/io/file.h"
#include "common/model/config/lora_config.h"
#include "common/text/tokenizer/tokenizer_config.h"
#include "kernels/cpu/isa/isa.h"
#include "server/app/plan_command.h"
#include "server/app/teacher_app.h"
#include "server/options/config_json.h"
#include "server/options/teacher_options.h"
#include "server/serving/sampling_defaults.h"

namespace taopd {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// Returns null if there is no template. One that cannot be parsed only causes a warning, because
// only chat requests need it.
std::unique_ptr<const ChatTemplate> LoadChatTemplate(const std::string& model_dir) {
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::Load(model_dir);
  if (chat.ok()) return std::make_unique<const ChatTemplate>(*std::move(chat));
  if (!absl::IsNotFound(chat.status())) {
    LogWarning("chats are not served: the chat template cannot be used",
               {{"reason", chat.status().message()}});
  }
  return nullptr;
}

// Returns the ids in eos_ids that are not the tokenizer's eos_token, or none if there is no such
// token.
std::vector<int32_t> FurtherEosIds(const std::string& model_dir, const Tokenizer& tokenizer,
                                   const std::vector<int32_t>& eos_ids) {
  const auto config = ReadTokenizerConfig(model_dir);
  if (!config.ok()) return {};
  const auto special = FindSpecialTokens(*config, tokenizer);
  if (!special.ok() || !special->eos) return {};
  std::vector<int32_t> further = eos_ids;
  std::erase(further, *special->eos);
  return further;
}

// Loads what requests with texts need besides the tokenizer, which the model already has if there
// is one.
absl::Status LoadTextParts(const std::string& model_dir, ServedModel* model) {
  const std::string config = model_dir + "/tokenizer_config.json";
  if (FileExists(config)) {
    TAOPD_ASSIGN_OR_RETURN(model->tokenizer_config_json, ReadFileToString(config, kMaxConfigBytes));
  }
  model->chat_template = LoadChatTemplate(model_dir);
  if (model->tokenizer == nullptr) return absl::OkStatus();
  model->grammar_compiler = std::make_unique<GrammarCompiler>(
      TokenBytesOf(*model->tokenizer, model->limits.vocab_size), model->eos_token_ids);
  model->further_eos_ids = FurtherEosIds(model_dir, *model->tokenizer, model->eos_token_ids);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ServedModel>> LoadModel(TeacherOptions& options) {
  if (IsAdapterDir(options.model)) {
    return InvalidArgument("--model ", options.model,
                           " is an adapter: name its base with --model "
                           "and the adapter with --lora");
  }
  auto model = std::make_shared<ServedModel>();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(options.model);
  if (!tokenizer.ok() && !absl::IsNotFound(tokenizer.status())) {
    return tokenizer.status();
  }
  model->tool_call_format = options.tool_call_parser;
  if (options.generation_config == "auto") {
    TAOPD_ASSIGN_OR_RETURN(model->sampling_defaults, LoadSamplingDefaults(options.model));
  }
  TAOPD_ASSIGN_OR_RETURN(LoadedEngine loaded,
                         LoadEngine(options.model, options.dtype, options.device,
                                    static_cast<int>(options.num_threads),
                                    options.ToEngineOptions(), options.lora, options.trainable));
  if (tokenizer.ok()) model->tokenizer = *std::move(tokenizer);
  model->limits = loaded.engine->limits();
  model->eos_token_ids = loaded.eos_token_ids;
  TAOPD_RETURN_IF_ERROR(LoadTextParts(options.model, model.get()));
  TAOPD_ASSIGN_OR_RETURN(model->model_config_json,
                         ReadFileToString(options.model + "/config.json", kMaxConfigBytes));
  model->engine = std::move(loaded.engine);
  model->weights = std::move(loaded.weights);
  model->name = options.ModelName();
  model->root = options.model;
  model->revision = loaded.revision;
  model->dtype = loaded.dtype;
  model->device = loaded.device;
  model->tensor_parallel_size = options.tensor_parallel_size;
  TeacherOptions shown = options.WithoutSecrets();
  model->config_json = ConfigJson(DescribeSettings(shown));
  model->created_unix_s = absl::ToUnixSeconds(absl::Now());
  LogInfo("engine", {{"device", loaded.device},
                     {"architecture", loaded.architecture},
                     {"num_parameters", loaded.num_parameters},
                     {"cpu_kernels", cpu::NameOf(cpu::WidestInstructionSet())}});
  return model;
}

int Main(int argc, char** argv) {
  if (IsTensorParallelWorker()) return RunTensorParallelWorker();
  auto parsed = ParseTeacherOptions(argc, argv, std::cout, std::cerr);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  TeacherOptions& options = std::get<TeacherOptions>(parsed);
  TAOPD_CHECK(SetLogLevel(options.log_level).ok());  // the options allow only valid levels
  if (options.plan) {
    const auto find = [&options] {
      return FindBudget(options.device, options.ToEngineOptions().memory,
                        options.tensor_parallel_size);
    };
    return PrintPlan(options, find, std::cout, std::cerr);
  }
  StopLookingForLockCycles();
  if (const absl::Status added = AddKeysOfEnvironment(&options); !added.ok()) {
    std::cerr << added.message() << "\n";
    return kExitUsage;
  }
  TeacherOptions shown = options.WithoutSecrets();
  std::cerr << WriteYamlSettings(DescribeSettings(shown));
  return RunTeacher(
      options, [&options] { return LoadModel(options); }, std::cout);
}

}  // namespace
}  // namespace taopd

[[gnu::used, gnu::section(".preinit_array")]] auto* const restart_at_load =
    taopd::RestartWithShortThreadWaits;

int main(int argc, char** argv) {
  // A write beyond a limit of the file size (ulimit -f) fails as on a full disk.
  signal(SIGXFSZ, SIG_IGN);
  taopd::KeepFreedMemory();
  taopd::LeaveProcess(taopd::RunMain("taopd-teacher", [&] { return taopd::Main(argc, argv); }));
}
