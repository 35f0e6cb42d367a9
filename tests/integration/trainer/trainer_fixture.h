// The fixture of tests of the two real programs on 127.0.0.1, with a trained teacher (stories260K),
// a small random student made by `taopd-trainer sft`, and prompts as token ids.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <filesystem>

#include <charconv>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/io/sha256.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

inline std::string ModelConfigText() {
  return R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":512,"hidden_size":32,
"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
"max_position_embeddings":128,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true,
"attention_bias":false,"mlp_bias":false,"hidden_act":"silu","initializer_range":0.1,"bos_token_id":1,
"eos_token_id":2,"torch_dtype":"float32"})";
}

// The tests of the teacher, in the same program, have a class of this name too.
inline namespace trainer_programs {

class TeacherProcess {
 public:
  // If `grpc_port` is 0, the kernel picks the port.
  TeacherProcess(const TempDir& dir, const std::string& model_dir, int grpc_port = 0,
                 const std::vector<std::string>& flags = {})
      : ready_path_(dir.File("ready.json")) {
    std::remove(ready_path_.c_str());
    std::vector<std::string> arguments = {BinaryPath("taopd-teacher"),
                                          "--model",
                                          model_dir,
                                          "--port",
                                          "0",
                                          "--grpc-port",
                                          std::to_string(grpc_port),
                                          "--ready-file",
                                          ready_path_,
                                          "--num-threads",
                                          "1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    process_.emplace(arguments, dir.File("teacher.log"));
    EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] {
      return std::filesystem::exists(ready_path_) || !process_->running();
    }));
    if (std::filesystem::exists(ready_path_)) {
      const auto ready = nlohmann::json::parse(ReadFile(ready_path_));
      grpc_port_ = ready.at("grpc_port").get<int>();
      http_port_ = ready.at("http_port").get<int>();
    } else {
      ADD_FAILURE() << process_->Output();
    }
  }
  int grpc_port() const { return grpc_port_; }
  int http_port() const { return http_port_; }
  std::string endpoint() const { return Concat("grpc://127.0.0.1:", grpc_port_); }
  Process& process() { return *process_; }

 private:
  std::string ready_path_;
  std::optional<Process> process_;
  int grpc_port_ = 0, http_port_ = 0;
};

}  // namespace trainer_programs

// A port of 127.0.0.1 on which somebody else listens.
class PortInUse {
 public:
  PortInUse() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_, any, length), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    EXPECT_EQ(getsockname(socket_, any, &length), 0);
    port_ = ntohs(address.sin_port);
  }
  ~PortInUse() { close(socket_); }
  int port() const { return port_; }

 private:
  const int socket_;
  int port_ = 0;
};

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteFile(dir_.File("student.json"), ModelConfigText());
    std::string pairs, prompts, heldout;
    RandomStream random(3);
    for (int row = 0; row < 24; ++row) {
      std::string ids = "1";
      for (uint64_t i = 0; i <= random.NextBelow(6); ++i)
        ids += Concat(",", 3 + random.NextBelow(500));
      pairs += Concat("{\"prompt_ids\":[", ids, "],\"response_ids\":[", 5 + row, ",7]}\n");
      prompts += Concat("{\"prompt_ids\":[", ids, "]}\n");
    }
    WriteFile(dir_.File("pairs.jsonl"), pairs);
    WriteFile(dir_.File("prompts.jsonl"), prompts);
    WriteFile(dir_.File("sft.yaml"),
              Concat("run: {name: student, dir: ", dir_.File("student"), "}\n",
                     "model: {config: ", dir_.File("student.json"), "}\n", "data: {train: [",
                     dir_.File("pairs.jsonl"), "], max_length: 64}\n", "optimizer: {lr: 1e-3}\n",
                     "trainer: {total_steps: 2, batch_size: 8, num_threads: 1}\n"));
    // The tests of a process share one supervised run; each gets a copy of its results.
    static const TempDir shared;
    const std::string finished = shared.File("student");
    if (!std::filesystem::exists(finished)) {
      std::string output;
      ASSERT_EQ(Run({"sft", "--config", dir_.File("sft.yaml")}, &output), 0) << output;
      std::filesystem::copy(dir_.File("student"), finished,
                            std::filesystem::copy_options::recursive);
    } else {
      std::filesystem::copy(finished, dir_.File("student"),
                            std::filesystem::copy_options::recursive);
    }
    WriteTrainConfig("");
  }

  // Writes the base configuration followed by `more`.
  void WriteTrainConfig(const std::string& more) {
    WriteFile(dir_.File("train.yaml"),
              Concat("run: {name: test, dir: ", dir_.File("run"), ", seed: 11}\n",
                     "student: {model: ", dir_.File("student/model"), "}\n", "data: {train: [",
                     dir_.File("prompts.jsonl"), "], val: [", dir_.File("pairs.jsonl"),
                     "], train_batch_size: 4, max_prompt_length: 16, max_response_length: 12}\n",
                     "rollout: {n: 2}\n", "optimizer: {lr: 1e-3, weight_decay: 0.0}\n",
                     "trainer: {total_steps: 6, mini_batch_size: 2, save_every: 2, eval_every: 3, "
                     "num_threads: 1}\n",
                     "eval: {measure: kl, num_prompts: 8}\n", more));
  }

  // Makes the directory "tokenizer" with 271 tokens, a chat template and generation defaults.
  void WriteTokenizer() {
    const std::string tokenizer = dir_.File("tokenizer");
    std::filesystem::create_directory(tokenizer);
    std::filesystem::copy_file(SourcePath("tests/common/text/data/qwen2_toy/tokenizer.json"),
                               tokenizer + "/tokenizer.json");
    WriteFile(tokenizer + "/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
    WriteFile(tokenizer + "/generation_config.json", R"({"eos_token_id": [270, 2]})");
    WriteFile(tokenizer + "/chat_template.jinja",
              "{% for message in messages %}{{ message.content }}{% endfor %}");
  }
  // Makes the small student with that tokenizer. Returns its directory. REQUIRES: WriteTokenizer
  // was called.
  std::string WriteTextStudent() {
    const std::string student = dir_.File("text_student");
    std::filesystem::copy(dir_.File("student/model"), student);
    std::filesystem::copy(dir_.File("tokenizer"), student);
    return student;
  }

  int Run(std::vector<std::string> arguments, std::string* output,
          absl::Duration timeout = absl::Seconds(120)) {
    arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
    return RunProgram(arguments, dir_.File("command.log"), output, timeout);
  }
  // Without an endpoint, the settings name the teacher.
  std::vector<std::string> TrainArguments(const std::string& endpoint,
                                          const std::vector<std::string>& settings = {},
                                          const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {"train", "--config", dir_.File("train.yaml")};
    if (!endpoint.empty()) {
      arguments.push_back("--set");
      arguments.push_back(Concat("teacher.endpoints=[", endpoint, "]"));
    }
    for (const std::string& setting : settings) {
      arguments.push_back("--set");
      arguments.push_back(setting);
    }
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  }
  int Train(const std::string& endpoint, std::string* output,
            const std::vector<std::string>& settings = {},
            const std::vector<std::string>& flags = {}) {
    return Run(TrainArguments(endpoint, settings, flags), output);
  }

  // Returns the hash of every file below `dir`, by relative path.
  static std::map<std::string, std::string> FilesOf(const std::string& dir) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
      if (!entry.is_regular_file()) continue;
      files[entry.path().lexically_relative(dir).string()] = FileHash(entry.path().string());
    }
    return files;
  }
  static std::string FileHash(const std::string& path) {
    auto hash = Sha256OfFile(path);
    return hash.ok() ? *hash : hash.status().ToString();
  }
  // Returns the loss of each step in metrics.jsonl.
  std::vector<double> Losses(const std::string& run_dir) {
    std::vector<double> losses;
    std::istringstream lines(ReadFile(run_dir + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains("loss/mean")) losses.push_back(row.at("loss/mean").get<double>());
    }
    return losses;
  }

  // Returns the newest value of a metric of the run `run`, or NaN if there is none.
  double LastMetric(const std::string& run, const std::string& name) {
    double value = std::numeric_limits<double>::quiet_NaN();
    std::istringstream lines(ReadFile(dir_.File(run + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains(name)) value = row.at(name).get<double>();
    }
    return value;
  }
  // Returns the step of the newest checkpoint of the run `run`, or -1 if there is none.
  int64_t NewestCheckpoint(const std::string& run) {
    int64_t newest = -1;
    std::error_code error;  // the directory comes and goes while the trainer works
    for (std::filesystem::directory_iterator it(dir_.File(run + "/checkpoints"), error), end;
         !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      int64_t step = -1;
      if (name.starts_with("step-"))
        std::from_chars(name.data() + 5, name.data() + name.size(), step);
      newest = std::max(newest, step);
    }
    return newest;
  }

  TempDir dir_;
  const std::string teacher_model_ = SourcePath("deploy/examples/stories260K");
};

}  // namespace taopd::testing
