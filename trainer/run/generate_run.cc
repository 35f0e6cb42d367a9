// The generate subcommand.

#include <absl/synchronization/notification.h>

#include <algorithm>
#include <cstdio>

#include "common/engine/torch_engine.h"
#include "trainer/run/commands.h"
#include "trainer/run/run_setup.h"

namespace taopd {
namespace {

// Prints tokens as they come; holds back bytes that are not yet a whole UTF-8 character.
class TokenPrinter {
 public:
  TokenPrinter(const Tokenizer* tokenizer, std::vector<int32_t> hidden_ids)
      : tokenizer_(tokenizer), hidden_ids_(std::move(hidden_ids)) {}

  void Print(int32_t id) {
    if (tokenizer_ == nullptr) {
      std::printf("%d ", id);
    } else if (std::find(hidden_ids_.begin(), hidden_ids_.end(), id) == hidden_ids_.end()) {
      pending_ += tokenizer_->TokenBytes(id);
      const size_t whole = WholeCharacters();
      std::fwrite(pending_.data(), 1, whole, stdout);
      pending_.erase(0, whole);
    }
    std::fflush(stdout);
  }
  void End() {
    std::fwrite(pending_.data(), 1, pending_.size(), stdout);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  // Length of the prefix that does not end inside a character.
  size_t WholeCharacters() const {
    for (size_t back = 1; back <= 3 && back <= pending_.size(); ++back) {
      const auto byte = static_cast<unsigned char>(pending_[pending_.size() - back]);
      if (byte < 0x80) break;
      if (byte >= 0xC0) {
        const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
        return length > back ? pending_.size() - back : pending_.size();
      }
    }
    return pending_.size();
  }
  const Tokenizer* tokenizer_;
  std::vector<int32_t> hidden_ids_;
  std::string pending_;
};

std::optional<RunFailure> Generate(const GenerateRequest& request) {
  SetNumThreads(0);
  auto student = LoadStudent(request.model_dir, request.dtype, request.device, nullptr);
  if (!student.ok()) return BadData(Annotate(student.status(), request.model_dir));
  const ModelConfig& model = student->decoder->config();
  InferenceRequest generation;
  generation.request_id = "generate";
  if (!request.prompt_ids.empty()) {
    for (int64_t id : request.prompt_ids) {
      if (id < 0 || id >= model.vocab_size) {
        return BadConfig(InvalidArgument("--prompt-ids: ", id, " is not below the vocabulary size ", model.vocab_size));
      }
      generation.token_ids.push_back(static_cast<int32_t>(id));
    }
  } else if (student->tokenizer == nullptr) {
    return BadConfig(InvalidArgument(request.model_dir, " has no tokenizer.json: give --prompt-ids"));
  } else {
    generation.token_ids = student->tokenizer->Encode(request.prompt, /*add_special_tokens=*/true);
  }
  if (generation.token_ids.empty()) return BadConfig(InvalidArgument("the prompt is empty"));
  EngineOptions options;
  options.max_num_seqs = 1;
  options.max_model_len = static_cast<int64_t>(generation.token_ids.size()) + request.max_new_tokens;
  if (options.max_model_len > model.max_position_embeddings) {
    return BadConfig(InvalidArgument("prompt of ", generation.token_ids.size(), " tokens + --max-new-tokens ",
                                     request.max_new_tokens, " exceeds max_position_embeddings ",
                                     model.max_position_embeddings));
  }
  auto engine = MakeTorchEngine(student->decoder, options);
  if (!engine.ok()) return BadConfig(engine.status());
  SamplingParams sampling;
  sampling.max_new_tokens = request.max_new_tokens;
  sampling.temperature = static_cast<float>(request.temperature);
  sampling.top_p = static_cast<float>(request.top_p);
  sampling.top_k = static_cast<int32_t>(request.top_k);
  sampling.seed = static_cast<uint64_t>(request.seed);
  generation.sampling = sampling;
  TokenPrinter printer(student->tokenizer.get(), model.eos_token_ids);
  generation.on_token = [&printer](int32_t id, float) { printer.Print(id); };

  absl::Notification finished;
  absl::Status status;
  (*engine)->Submit(std::move(generation), [&](absl::StatusOr<InferenceResult> result) {
    status = result.status();
    finished.Notify();
  });
  finished.WaitForNotification();
  if (!status.ok()) return BadConfig(status);
  printer.End();
  return std::nullopt;
}

}  // namespace

std::optional<RunFailure> RunGenerate(const GenerateRequest& request) {
  try {
    return Generate(request);
  } catch (const c10::Error& error) {
    return RunFailure{ExitCode::kInternal, Internal(error.what_without_backtrace())};
  }
}

}  // namespace taopd
