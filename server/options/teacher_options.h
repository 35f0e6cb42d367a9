// The settings of taopd-teacher. Flags that vLLM also has carry vLLM's names. Each setting is
// declared once, in Declare; the flags, the checks, the printed configuration and the reference
// come from it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <variant>
#include <vector>

#include "common/base/exit_code.h"
#include "common/config/kernel_mode.h"
#include "common/config/settings.h"
#include "common/engine/engine.h"
#include "server/options/tool_call_format.h"

namespace taopd {

struct TeacherOptions {
  std::string model;
  std::string lora;
  bool trainable = false;
  std::string weights_dir;
  std::string served_model_name;
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  int64_t grpc_port = 50051;
  int64_t health_port = 0;
  std::string ssl_certfile;
  std::string ssl_keyfile;
  std::string ssl_ca_certs;
  std::vector<std::string> api_key;
  std::string api_key_file;
  std::vector<std::string> trusted_proxies;
  bool grpc_reflection = false;
  double grpc_max_connection_idle = 3600.0;
  double grpc_max_connection_age = 0.0;
  double grpc_max_connection_age_grace = 600.0;
  int64_t grpc_max_concurrent_streams = 1024;
  int64_t max_http_connections = 4096;
  int64_t max_http_connections_per_client = 1024;
  double max_client_memory_share = 0.5;
  std::string dtype = "auto";
  std::string device = "auto";
  int64_t num_threads = 0;
  int64_t tensor_parallel_size = 1;
  int64_t max_model_len = 0;
  int64_t max_logprobs = 128;
  int64_t max_dense_vocab_size = 4096;
  int64_t max_num_batched_tokens = 0;
  int64_t max_num_seqs = 256;
  int64_t max_queued_tokens = int64_t{4} << 20;
  double max_client_queue_share = 0.5;
  std::string kv_cache_memory_bytes = "auto";  // "auto" or a size; 0 means that it only scores
  bool enable_prefix_caching = true;
  CudaGraphUse cuda_graphs = CudaGraphUse::kAuto;
  int64_t max_cudagraph_capture_size = 0;
  int64_t max_seq_len_to_capture = CudaGraphOptions().max_seq_len;
  KernelMode kernels = KernelMode::kAuto;
  std::string generation_config = "auto";
  ToolCallFormat tool_call_parser = ToolCallFormat::kNone;
  double gpu_memory_utilization = kDefaultMemoryShare;
  std::string cpu_memory_limit = "0";  // a size; 0 means a share of the available memory
  int64_t max_message_memory_bytes = int64_t{4} << 30;
  double drain_delay = 0.0;
  double shutdown_timeout = 30.0;
  double stall_timeout = 120.0;
  double canary_interval = 300.0;
  double self_probe_interval = 10.0;
  std::string ready_file;
  std::string access_log;
  std::string trace;
  std::string log_level = "info";
  bool plan = false;
  std::string plan_device;

  void Declare(SettingTable& keys);

  // Returns served_model_name, or `model` if that is empty.
  const std::string& ModelName() const {
    return served_model_name.empty() ? model : served_model_name;
  }
  // REQUIRES: ValidateTeacherOptions succeeded.
  EngineOptions ToEngineOptions() const;
  // Returns a copy without the keys, for printing and for GET /config.
  TeacherOptions WithoutSecrets() const;

 private:
  void DeclareModel(SettingTable& keys);
  void DeclareNetwork(SettingTable& keys);
  void DeclareGrpc(SettingTable& keys);
  void DeclareDevice(SettingTable& keys);
  void DeclareEngine(SettingTable& keys);
  void DeclareServing(SettingTable& keys);
};

// Checks each setting by itself and in combination. Returns INVALID_ARGUMENT naming the setting,
// its value and the valid values.
absl::Status ValidateTeacherOptions(TeacherOptions& options);

// Adds the keys in TAOPD_API_KEY and VLLM_API_KEY, which fewer users can see than the command line.
// Returns INVALID_ARGUMENT naming the variable, but not the key, if no client could show it.
absl::Status AddKeysOfEnvironment(TeacherOptions* options);

// Parses the command line. If it requests the help or the version, or is invalid, writes the text
// to `out` or `err` and returns the exit code instead of the options.
std::variant<TeacherOptions, int> ParseTeacherOptions(int argc, const char* const* argv,
                                                      std::ostream& out, std::ostream& err);

}  // namespace taopd
