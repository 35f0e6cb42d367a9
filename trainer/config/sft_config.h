// The configuration of `taopd-trainer sft`: supervised training on prompt/response pairs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "trainer/config/run_config.h"
#include "trainer/data/conversation.h"

namespace taopd {

struct SftModelConfig {
  std::string init;
  std::string config;
  std::string tokenizer;
  std::string dtype = "auto";
  LoraSettings lora;
  void Declare(SettingTable& keys);
};

struct SftDataConfig : PromptConfig {
  std::vector<std::string> train;
  std::vector<std::string> val;
  std::string prompt_key = "prompt";
  std::string response_key = "response";
  std::string messages_key = "messages";
  AssistantTurns assistant_turns = AssistantTurns::kLast;
  int64_t max_length = 2048;
  bool append_eos = true;
  void Declare(SettingTable& keys);
};

struct SftTrainerConfig : ProcessConfig {
  int64_t total_steps = 100;
  int64_t batch_size = 32;
  int64_t micro_batch_tokens = 16384;
  int64_t eval_every = 0;
  int64_t save_every = 0;
  void Declare(SettingTable& keys);
};

struct SftConfig {
  RunConfig run;
  SftModelConfig model;
  SftDataConfig data;
  OptimizerConfig optimizer;
  SftTrainerConfig trainer;
  void Declare(SettingTable& keys);
  // Returns INVALID_ARGUMENT for settings that cannot be combined.
  absl::Status Check() const;
};

}  // namespace taopd
