#include "server/options/teacher_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <limits>
#include <ostream>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/memory/cuda_graphs.h"
#include "common/memory/engine_plan.h"
#include "common/wire/bearer.h"
#include "kernels/cpu/isa/isa.h"
#include "server/net/client_name.h"
#include "server/options/flags.h"
#include "server/options/version.h"

namespace taopd {
namespace {

constexpr char kAuto[] = "auto";
constexpr char kKeyRule[] = "a key must be printable ASCII without spaces and line feeds";
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

SettingCheck<std::string> MemorySizeOrAuto() {
  return Must<std::string>(
      "be auto or a size such as 4294967296 or 4GiB",
      [](const std::string& value) { return value == kAuto || ParseMemoryBytes(value).ok(); });
}

SettingCheck<double> Share() {
  return Must<double>("be above 0 and at most 1",
                      [](double share) { return share > 0.0 && share <= 1.0; });
}

absl::Status CheckDeviceMemory(const std::string& value) {
  return value.empty() ? absl::OkStatus() : StatedBudget(MemoryLimits(), value).status();
}

// REQUIRES: `text` was checked.
int64_t BytesOfChecked(const std::string& text) {
  const absl::StatusOr<int64_t> bytes = ParseMemoryBytes(text);
  TAOPD_CHECK(bytes.ok());
  return *bytes;
}

absl::Status ValidateCudaGraphs(const TeacherOptions& options) {
  const TeacherOptions defaults;
  const CudaGraphOptions graphs = options.ToEngineOptions().cuda_graphs;
  for (const auto& [name, value, default_value] :
       {std::tuple{"max_cudagraph_capture_size", options.max_cudagraph_capture_size,
                   defaults.max_cudagraph_capture_size},
        {"max_seq_len_to_capture", options.max_seq_len_to_capture,
         defaults.max_seq_len_to_capture}}) {
    if (graphs.use == CudaGraphUse::kNever && value != default_value) {
      return InvalidArgument(name, " = ", value,
                             ": cuda_graphs is false, and no decode step is captured");
    }
  }
  if (graphs.use == CudaGraphUse::kAlways) {
    TAOPD_RETURN_IF_ERROR(Annotate(CheckCanCapture(options.kernels, options.tensor_parallel_size),
                                   "cuda_graphs = true"));
  }
  return CheckCaptureLimits(graphs, options.max_num_seqs);
}

}  // namespace

void TeacherOptions::Declare(SettingTable& keys) {
  DeclareModel(keys);
  DeclareNetwork(keys);
  DeclareGrpc(keys);
  DeclareDevice(keys);
  DeclareEngine(keys);
  DeclareServing(keys);
}

void TeacherOptions::DeclareModel(SettingTable& keys) {
  keys.Add("model", &model,
           "Model directory with config.json and safetensors files, and with tokenizer.json if "
           "requests may contain text.",
           NotEmpty());
  keys.Add<std::string>(
      "lora", &lora,
      "Directory of a PEFT adapter of the model, which is merged into the weights at the start.");
  keys.Add("trainable", &trainable,
           "Let a trainer replace the weights over gRPC (rollout.endpoints of taopd-trainer), and "
           "generate its rollouts. Every client that may score may then also change the model, so "
           "use keys.");
  keys.Add<std::string>("weights_dir", &weights_dir,
                        "With --trainable: directory that new weights must be under, and to which "
                        "weights that a trainer sends are written. If it is empty, new weights may "
                        "be anywhere, and those that are sent go to a temporary directory.");
  keys.Add<std::string>(
      "served_model_name", &served_model_name,
      "Name of the model in requests and answers. If it is empty, it is the value of --model.");
}

void TeacherOptions::DeclareNetwork(SettingTable& keys) {
  keys.Add("host", &host, "Address to listen on.", NotEmpty());
  keys.Add("port", &port, "HTTP port. 0 lets the system choose one.", Between<int64_t>(0, 65535));
  keys.Add("grpc_port", &grpc_port, "gRPC port. 0 lets the system choose one.",
           Between<int64_t>(0, 65535));
  keys.Add("health_port", &health_port,
           "HTTP port for /health, /health_generate, /ping, /ready and /metrics only, without TLS "
           "and keys. 0 means none.",
           Between<int64_t>(0, 65535));
  keys.Add<std::string>(
      "ssl_certfile", &ssl_certfile,
      "PEM file of the server's certificate and its chain. With it, HTTP and gRPC use TLS.");
  keys.Add<std::string>("ssl_keyfile", &ssl_keyfile, "PEM file of the certificate's key.");
  keys.Add<std::string>("ssl_ca_certs", &ssl_ca_certs,
                        "PEM file of certificate authorities. With it, clients must show a "
                        "certificate that one of them has signed.");
  keys.Add<std::vector<std::string>>(
      "api_key", &api_key,
      "Key that clients must show as a bearer token, over HTTP and gRPC. The flag may be repeated. "
      "Other users of the machine can see it, so prefer --api-key-file or the variables "
      "TAOPD_API_KEY and VLLM_API_KEY.");
  keys.Add<std::string>(
      "api_key_file", &api_key_file,
      "File of keys, one per line. On SIGHUP, the server reads it and the certificates again.");
  keys.Add<std::vector<std::string>>(
      "trusted_proxies", &trusted_proxies,
      "Address or range (10.0.0.0/8, fd00::/8) of proxies in front of the server. The flag may be "
      "repeated. Their X-Forwarded-For or Forwarded header, read from the right, names the client. "
      "Otherwise the client is the address of the connection. If the server requires keys, the "
      "client is the key.",
      [](const std::vector<std::string>& networks) { return TrustedProxies().Add(networks); });
  keys.Add(
      "max_http_connections", &max_http_connections,
      "Maximum number of HTTP connections at once. There are fewer if file descriptors are short. "
      "At the limit, a new connection closes another one for which no request is being answered.",
      Between<int64_t>(1, 1 << 20));
  keys.Add("max_http_connections_per_client", &max_http_connections_per_client,
           "Maximum number of HTTP connections at once from one client address.",
           Between<int64_t>(1, 1 << 20));
  keys.Add(
      "max_client_memory_share", &max_client_memory_share,
      "Share of max_message_memory_bytes that the requests and answers of one client may take "
      "while no other client holds any. Otherwise the clients get equal parts, as in the queue.",
      Share());
}

void TeacherOptions::DeclareGrpc(SettingTable& keys) {
  keys.Add("grpc_reflection", &grpc_reflection,
           "Serve gRPC reflection, which tools such as grpcurl use to find methods and messages.");
  keys.Add("grpc_max_connection_idle", &grpc_max_connection_idle,
           "A gRPC connection without a call for this many seconds is closed. Clients reconnect by "
           "themselves. 0 means never.",
           Between(0.0, 1e6));
  keys.Add("grpc_max_connection_age", &grpc_max_connection_age,
           "A gRPC connection is closed after this many seconds, give or take 10 %, so that "
           "clients find new replicas. 0 means never.",
           Between(0.0, 1e6));
  keys.Add("grpc_max_connection_age_grace", &grpc_max_connection_age_grace,
           "With --grpc-max-connection-age: seconds that the calls of a closing connection may "
           "take to finish, after which they are cancelled. 0 means no limit.",
           Between(0.0, 1e6));
  keys.Add("grpc_max_concurrent_streams", &grpc_max_concurrent_streams,
           "Maximum number of concurrent calls per gRPC connection. Clients delay further calls.",
           Between<int64_t>(1, 1 << 20));
}

void TeacherOptions::DeclareDevice(SettingTable& keys) {
  keys.Add("dtype", &dtype,
           "Data type of the weights in memory: float32, bfloat16, float16, or auto, which keeps "
           "the stored type.",
           OneOf({"auto", "float32", "bfloat16", "float16"}));
  keys.Add("device", &device,
           "Device to compute on: cpu, cuda, cuda:N, or auto, which means cuda if there is a GPU.",
           NotEmpty());
  keys.Add("num_threads", &num_threads, "Number of threads that compute. 0 means one per core.",
           Between<int64_t>(0, 4096));
  keys.Add("tensor_parallel_size", &tensor_parallel_size,
           "Number of processes over which the model is split. Each has a GPU of its own. On a "
           "CPU, they share its cores and its memory.",
           Between<int64_t>(1, 64));
}

void TeacherOptions::DeclareEngine(SettingTable& keys) {
  keys.Add("max_model_len", &max_model_len,
           "Maximum length of a sequence in tokens, prompt and generated tokens together. 0 means "
           "the model's own limit.",
           Between<int64_t>(0, kMaxInt32));
  keys.Add("max_logprobs", &max_logprobs,
           "Largest top_k, prompt_logprobs and logprobs of a request, and largest number of "
           "candidate ids per row.",
           Between<int64_t>(0, kMaxInt32));
  keys.Add("max_dense_vocab_size", &max_dense_vocab_size,
           "Largest vocabulary for which a gRPC request may ask for the log-probs of every id. A "
           "row of the reply takes 4 bytes per id.",
           Between<int64_t>(0, kMaxInt32));
  keys.Add("max_num_batched_tokens", &max_num_batched_tokens,
           "Maximum number of tokens per engine step. 0 means 1024 on a CPU and 8192 on a GPU, or "
           "max_num_seqs if that is more.",
           Between<int64_t>(0, kMaxInt32));
  keys.Add("max_num_seqs", &max_num_seqs, "Maximum number of sequences that run at once.",
           Between<int64_t>(1, 1 << 20));
  keys.Add("max_queued_tokens", &max_queued_tokens,
           "Maximum number of tokens that wait for the engine. Requests over this limit are "
           "refused with RESOURCE_EXHAUSTED or 429.",
           AtLeast<int64_t>(1));
  keys.Add("max_client_queue_share", &max_client_queue_share,
           "Share of the queue that one client may take while no other client waits. N clients "
           "that flood the server get equal parts, and one part stays free for the next client: "
           "with 0.5 each part is 1 / (N + 1). 1 means no limit.",
           Share());
  keys.Add("kv_cache_memory_bytes", &kv_cache_memory_bytes,
           "Memory of the KV cache, which generation needs, as a size such as 4GiB. auto takes "
           "what the memory plan leaves. With 0, the server only scores.",
           MemorySizeOrAuto());
  keys.Add("enable_prefix_caching", &enable_prefix_caching,
           "Reuse the keys and values of earlier requests with a common prefix. On by default.");
  keys.Add("cuda_graphs", &cuda_graphs,
           "Capture decode steps as CUDA graphs at the start and replay them, so that a GPU does "
           "not wait for launches. auto captures them where that is possible; false is vLLM's "
           "--enforce-eager; true is refused where it is impossible, as on a CPU.");
  keys.Add(
      "max_cudagraph_capture_size", &max_cudagraph_capture_size,
      "Largest number of sequences of a captured decode step, which is at most "
      "max_num_batched_tokens. 0 means max_num_seqs, but at most 512. Larger steps run eagerly.",
      Between<int64_t>(0, kMaxCaptureSize));
  keys.Add("max_seq_len_to_capture", &max_seq_len_to_capture,
           "Longest sequence, in tokens, that the captured decode steps have room for. Steps with "
           "longer sequences run eagerly.",
           Between<int64_t>(1, kMaxInt32));
  keys.Add("kernels", &kernels,
           "Kernels of this project, or compositions of LibTorch operations that compute the same: "
           "custom, composed, or auto, which means custom on a CPU and, on a GPU, those kernels "
           "that agree with their composition and are not slower in a check at the start.");
  keys.Add("generation_config", &generation_config,
           "Where the sampling defaults of requests come from. auto takes temperature, top_p, "
           "top_k, min_p and repetition_penalty from the model's generation_config.json. vllm "
           "ignores the file.",
           OneOf({"auto", "vllm"}));
  keys.Add("tool_call_parser", &tool_call_parser,
           "Format in which the model writes tool calls: hermes (Qwen), llama3_json, or none. "
           "Chats return them as tool_calls. With none, they stay in the text.");
  keys.Add("gpu_memory_utilization", &gpu_memory_utilization,
           "Share of a GPU's memory that the teacher may take.", Share());
  keys.Add("cpu_memory_limit", &cpu_memory_limit,
           "Memory that the teacher may take on the CPU, as a size such as 24GiB. 0 means 0.9 of "
           "what is available.",
           MemorySize());
}

void TeacherOptions::DeclareServing(SettingTable& keys) {
  keys.Add("max_message_memory_bytes", &max_message_memory_bytes,
           "Limit of the memory that all request bodies and answers take together. Requests over "
           "this limit are refused with RESOURCE_EXHAUSTED or 429.",
           AtLeast<int64_t>(128 << 20));
  keys.Add("drain_delay", &drain_delay,
           "Seconds for which the server still accepts work after SIGTERM has made it unready, so "
           "that load balancers can notice.",
           Between(0.0, 86400.0));
  keys.Add("shutdown_timeout", &shutdown_timeout,
           "Seconds that accepted work may take to finish after SIGTERM.", Between(0.0, 86400.0));
  keys.Add(
      "stall_timeout", &stall_timeout,
      "Health fails when the engine has taken no step for this many seconds although work waits.",
      Between(0.1, 86400.0));
  keys.Add("canary_interval", &canary_interval,
           "Seconds between scores of a fixed probe. While its scores differ from those at the "
           "start, the server accepts no work. With 0, the probe is scored only at the start.",
           Between(0.0, 86400.0));
  keys.Add("self_probe_interval", &self_probe_interval,
           "Seconds between the server's own connections to its listeners. Health fails when a "
           "listener has not answered three times in a row. 0 means never.",
           Between(0.0, 86400.0));
  keys.Add<std::string>("ready_file", &ready_file,
                        "File that the server writes as soon as it serves the model: "
                        "{\"http_port\", \"grpc_port\", \"pid\"}.");
  keys.Add<std::string>("access_log", &access_log,
                        "File to which a line of JSON is appended for each request, without "
                        "prompts and keys. On SIGHUP, the server reopens it. - means the standard "
                        "output. If it is empty, there is no log.");
  keys.Add<std::string>("trace", &trace,
                        "File to which a timeline of all sequences is written at the end, in the "
                        "Chrome trace format. If it is empty, there is none.");
  keys.Add("log_level", &log_level,
           "Lowest level of messages in the log: debug, info, warning or error.",
           OneOf({"debug", "info", "warning", "error"}));
  keys.Add("plan", &plan,
           "Print how much of the device's memory the teacher will need, and exit without loading "
           "the model.");
  keys.Add("plan_device", &plan_device,
           "With --plan: plan for this device, which need not exist on this machine, such as "
           "cpu:24GiB or cuda:80GiB.",
           CheckDeviceMemory);
}

EngineOptions TeacherOptions::ToEngineOptions() const {
  EngineOptions engine;
  engine.max_model_len = max_model_len;
  engine.max_logprobs = static_cast<int32_t>(max_logprobs);
  engine.max_candidates = static_cast<int32_t>(max_logprobs);
  engine.max_dense_vocab_size = max_dense_vocab_size;
  engine.max_num_seqs = max_num_seqs;
  engine.tensor_parallel_size = tensor_parallel_size;
  engine.max_num_batched_tokens = max_num_batched_tokens;
  engine.max_queued_tokens = max_queued_tokens;
  engine.max_client_queue_share = max_client_queue_share;
  engine.kv_cache_bytes =
      kv_cache_memory_bytes == kAuto ? kAutoKvCache : BytesOfChecked(kv_cache_memory_bytes);
  engine.prefix_caching = enable_prefix_caching;
  engine.kernels = kernels;
  engine.cuda_graphs = {cuda_graphs, max_cudagraph_capture_size, max_seq_len_to_capture};
  engine.memory.gpu_memory_utilization = gpu_memory_utilization;
  engine.memory.cpu_memory_limit_bytes = BytesOfChecked(cpu_memory_limit);
  return engine;
}

TeacherOptions TeacherOptions::WithoutSecrets() const {
  TeacherOptions shown = *this;
  for (std::string& key : shown.api_key) key = "(redacted)";
  return shown;
}

absl::Status ValidateTeacherOptions(TeacherOptions& options) {
  TAOPD_RETURN_IF_ERROR(CheckSettings(DescribeSettings(options)));
  if (options.port != 0 && options.port == options.grpc_port) {
    return InvalidArgument("grpc_port = ", options.grpc_port, ": must differ from port");
  }
  for (const auto& [name, port] :
       {std::pair{"port", options.port}, {"grpc_port", options.grpc_port}}) {
    if (options.health_port != 0 && options.health_port == port) {
      return InvalidArgument("health_port = ", port, ": must differ from ", name);
    }
  }
  if (options.ssl_certfile.empty() != options.ssl_keyfile.empty()) {
    return InvalidArgument("ssl_certfile = \"", options.ssl_certfile, "\" and ssl_keyfile = \"",
                           options.ssl_keyfile, "\": must be given together");
  }
  if (!options.ssl_ca_certs.empty() && options.ssl_certfile.empty()) {
    return InvalidArgument("ssl_ca_certs = \"", options.ssl_ca_certs,
                           "\" needs ssl_certfile and ssl_keyfile");
  }
  for (const std::string& key : options.api_key) {
    if (!IsBearerKey(key)) return InvalidArgument("api_key: ", kKeyRule);
  }
  if (!options.trainable && !options.weights_dir.empty()) {
    return InvalidArgument("weights_dir = \"", options.weights_dir, "\": only --trainable uses it");
  }
  if (options.trainable && options.tensor_parallel_size > 1) {
    return InvalidArgument("trainable = true: a model that is cut over tensor_parallel_size = ",
                           options.tensor_parallel_size, " processes takes no new weights");
  }
  if (options.trainable && !options.lora.empty()) {
    return InvalidArgument("trainable = true: a trainer's adapter takes the place of lora = \"",
                           options.lora, "\"; start the server with the base alone");
  }
  if (!options.plan && !options.plan_device.empty()) {
    return InvalidArgument("plan_device = \"", options.plan_device, "\": only --plan uses it");
  }
  const double grace = options.grpc_max_connection_age_grace;
  if (options.grpc_max_connection_age == 0 &&
      grace != TeacherOptions().grpc_max_connection_age_grace) {
    return InvalidArgument("grpc_max_connection_age_grace = ", grace,
                           ": only --grpc-max-connection-age uses it");
  }
  return ValidateCudaGraphs(options);
}

absl::Status AddKeysOfEnvironment(TeacherOptions* options) {
  for (const char* name : {"TAOPD_API_KEY", "VLLM_API_KEY"}) {
    const char* key = std::getenv(name);
    if (key == nullptr || *key == '\0') continue;
    if (!IsBearerKey(key)) return InvalidArgument(name, ": ", kKeyRule);
    options->api_key.emplace_back(key);
  }
  return absl::OkStatus();
}

std::variant<TeacherOptions, int> ParseTeacherOptions(int argc, const char* const* argv,
                                                      std::ostream& out, std::ostream& err) {
  TeacherOptions options;
  if (const std::string problem = cpu::ProblemOfMaxIsa(); !problem.empty()) {
    err << "taopd-teacher: " << problem << "\n";
    return kExitUsage;
  }
  const SettingTable table = DescribeSettings(options);
  CLI::App app(
      "Teacher server of on-policy distillation: top-k, tail and token log-probabilities over "
      "gRPC, and the APIs of vLLM and SGLang over HTTP.\n"
      "Exit codes: 0 drained or planned, 64 flags, 65 model files, 69 port in use, 70 internal, "
      "71 too little memory, 72 a failed device.",
      "taopd-teacher");
  app.set_version_flag("--version", Concat("taopd-teacher ", kTeacherVersion, "\nCPU kernels: ",
                                           cpu::NameOf(cpu::WidestInstructionSet())));
  app.allow_extras();
  AddSettingFlags(table, &app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? kExitOk : kExitUsage;
  }
  if (const std::vector<std::string> extras = app.remaining(); !extras.empty()) {
    std::vector<std::string> known;
    for (const Setting& setting : table.settings()) known.push_back("--" + FlagName(setting.path));
    err << "unknown argument " << extras.front() << DidYouMean(extras.front(), known) << "\n";
    return kExitUsage;
  }
  if (const absl::Status valid = ValidateTeacherOptions(options); !valid.ok()) {
    err << valid.message() << "\n";
    return kExitUsage;
  }
  return options;
}

}  // namespace taopd
