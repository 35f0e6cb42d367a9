// The subcommand generate.

#include <absl/synchronization/notification.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/torch_engine.h"
#include "common/text/tokenizer/incremental_decoder.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/process.h"
#include "trainer/student/student.h"

namespace taopd {
namespace {

// Prints tokens as they are generated: as text, or as ids if the model has no tokenizer.
class TokenPrinter {
 public:
  // The text of `hidden_ids`, which are the tokens that end a sequence, is not printed.
  TokenPrinter(const Tokenizer* tokenizer, std::vector<int32_t> hidden_ids)
      : hidden_ids_(std::move(hidden_ids)) {
    if (tokenizer != nullptr) decoder_.emplace(tokenizer, /*skip_special_tokens=*/false);
  }

  void Print(int32_t id) {
    if (!decoder_) {
      std::printf("%d ", id);
    } else if (std::find(hidden_ids_.begin(), hidden_ids_.end(), id) == hidden_ids_.end()) {
      Write(decoder_->Push(id));
    }
    std::fflush(stdout);
  }
  void End() {
    if (decoder_) Write(decoder_->Finish());
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  static void Write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  std::vector<int32_t> hidden_ids_;
  std::optional<IncrementalDecoder> decoder_;
};

// Returns the requested length, or the default, which ends at the model's last position.
absl::StatusOr<int64_t> MaxNewTokens(int64_t num_prompt_tokens, int64_t num_positions,
                                     std::optional<int64_t> asked) {
  const int64_t room = num_positions - num_prompt_tokens;
  if (room < 1) {
    return InvalidArgument("prompt of ", num_prompt_tokens,
                           " tokens leaves no room in max_position_embeddings ", num_positions);
  }
  if (!asked) return std::min(kDefaultMaxNewTokens, room);
  if (*asked <= room) return *asked;
  return InvalidArgument("prompt of ", num_prompt_tokens, " tokens + --max-new-tokens ", *asked,
                         " exceeds max_position_embeddings ", num_positions);
}

absl::Status Generate(const GenerateRequest& request) {
  SetNumThreads(0);
  auto student = LoadStudent(request.model_dir, request.dtype, request.device, nullptr);
  if (!student.ok()) return BadModel(student.status());
  const ModelConfig& model = student->decoder->config();
  InferenceRequest generation;
  generation.request_id = "generate";
  if (!request.prompt_ids.empty()) {
    for (int64_t id : request.prompt_ids) {
      if (id < 0 || id >= model.vocab_size) {
        return BadUsage(InvalidArgument("--prompt-ids: ", id, " is not below the vocabulary size ",
                                        model.vocab_size));
      }
      generation.token_ids.push_back(static_cast<int32_t>(id));
    }
  } else if (student->tokenizer == nullptr) {
    return BadUsage(
        InvalidArgument(request.model_dir, " has no tokenizer.json: give --prompt-ids"));
  } else {
    generation.token_ids = student->tokenizer->Encode(request.prompt, /*add_special_tokens=*/true);
  }
  if (generation.token_ids.empty()) return BadUsage(InvalidArgument("the prompt is empty"));
  const auto num_prompt_tokens = static_cast<int64_t>(generation.token_ids.size());
  const auto max_new_tokens =
      MaxNewTokens(num_prompt_tokens, model.max_position_embeddings, request.max_new_tokens);
  if (!max_new_tokens.ok()) return BadUsage(max_new_tokens.status());
  EngineOptions options;
  options.max_num_seqs = 1;
  options.max_model_len = num_prompt_tokens + *max_new_tokens;
  auto engine = MakeTorchEngine(student->decoder, options);
  if (!engine.ok()) return BadUsage(engine.status());
  SamplingParams sampling;
  sampling.max_new_tokens = *max_new_tokens;
  sampling.temperature = static_cast<float>(request.temperature);
  sampling.top_p = static_cast<float>(request.top_p);
  sampling.top_k = static_cast<int32_t>(request.top_k);
  sampling.seed = static_cast<uint64_t>(request.seed);
  generation.sampling = sampling;
  TokenPrinter printer(student->tokenizer.get(), model.eos_token_ids);
  generation.on_token = [&printer](const GeneratedTokens& so_far, bool) {
    printer.Print(so_far.ids.back());
  };

  absl::Notification finished;
  absl::Status status;
  (*engine)->Submit(std::move(generation), [&](absl::StatusOr<InferenceResult> result) {
    status = result.status();
    finished.Notify();
  });
  finished.WaitForNotification();
  if (!status.ok()) return BadUsage(status);
  printer.End();
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGenerate(const GenerateRequest& request) {
  return CatchExceptions([&] { return Generate(request); });
}

}  // namespace taopd
