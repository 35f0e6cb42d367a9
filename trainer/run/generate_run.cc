// The generate subcommand.

#include <absl/synchronization/notification.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/torch_engine.h"
#include "common/text/tokenizer/incremental_decoder.h"
#include "trainer/run/commands.h"
#include "trainer/run/run_setup.h"

namespace taopd {
namespace {

// Prints tokens as they come: text, or ids where the model has no tokenizer.
class TokenPrinter {
 public:
  // `hidden_ids`: tokens that have no text here (those that end a sequence).
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
        return BadConfig(InvalidArgument("--prompt-ids: ", id, " is not below the vocabulary size ",
                                         model.vocab_size));
      }
      generation.token_ids.push_back(static_cast<int32_t>(id));
    }
  } else if (student->tokenizer == nullptr) {
    return BadConfig(
        InvalidArgument(request.model_dir, " has no tokenizer.json: give --prompt-ids"));
  } else {
    generation.token_ids = student->tokenizer->Encode(request.prompt, /*add_special_tokens=*/true);
  }
  if (generation.token_ids.empty()) return BadConfig(InvalidArgument("the prompt is empty"));
  EngineOptions options;
  options.max_num_seqs = 1;
  options.max_model_len =
      static_cast<int64_t>(generation.token_ids.size()) + request.max_new_tokens;
  if (options.max_model_len > model.max_position_embeddings) {
    return BadConfig(InvalidArgument("prompt of ", generation.token_ids.size(),
                                     " tokens + --max-new-tokens ", request.max_new_tokens,
                                     " exceeds max_position_embeddings ",
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
  return CatchExceptions([&] { return Generate(request); });
}

}  // namespace taopd
