// A model in this process.
#include <absl/synchronization/notification.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/engine/torch_engine.h"
#include "common/text/tokenizer/incremental_decoder.h"
#include "trainer/commands/generate/response_generator.h"
#include "trainer/setup/process.h"
#include "trainer/setup/prompts.h"
#include "trainer/student/student.h"

namespace taopd {
namespace {

// Turns tokens into text as they are generated, or into ids if the model has no tokenizer. Leaves
// out the text of `hidden_ids`, the tokens that end a sequence, and in a chat that of all special
// tokens.
class TokenStream {
 public:
  TokenStream(const Tokenizer* tokenizer, const std::vector<int32_t>& hidden_ids, bool is_chat,
              std::function<void(std::string_view)> on_text)
      : hidden_ids_(hidden_ids), on_text_(std::move(on_text)) {
    if (tokenizer != nullptr) decoder_.emplace(tokenizer, /*skip_special_tokens=*/is_chat);
  }

  void Push(int32_t id) {
    if (!decoder_) {
      on_text_(Concat(id, " "));
    } else if (std::ranges::find(hidden_ids_, id) == hidden_ids_.end()) {
      Add(decoder_->Push(id));
    }
  }
  // Returns the whole text.
  std::string End() {
    if (decoder_) Add(decoder_->Finish());
    return std::move(text_);
  }

 private:
  void Add(const std::string& text) {
    text_ += text;
    if (!text.empty()) on_text_(text);
  }

  const std::vector<int32_t>& hidden_ids_;
  const std::function<void(std::string_view)> on_text_;
  std::optional<IncrementalDecoder> decoder_;
  std::string text_;
};

class LocalGenerator final : public ResponseGenerator {
 public:
  LocalGenerator(GenerateRequest request, Student student, PromptModel prompts)
      : request_(std::move(request)), student_(std::move(student)), prompts_(std::move(prompts)) {}

  absl::StatusOr<ResponseText> Generate(
      const ResponsePrompt& prompt, uint64_t seed,
      const std::function<void(std::string_view)>& on_text) override {
    InferenceRequest generation;
    generation.request_id = "generate";
    TAOPD_ASSIGN_OR_RETURN(generation.token_ids, BadUsage(Encode(prompt)));
    const auto num_prompt_tokens = static_cast<int64_t>(generation.token_ids.size());
    if (request_.chat) TAOPD_RETURN_IF_ERROR(BadUsage(Start(0)));
    TAOPD_ASSIGN_OR_RETURN(const int64_t max_new_tokens, BadUsage(MaxNewTokens(num_prompt_tokens)));
    TAOPD_RETURN_IF_ERROR(BadUsage(Start(num_prompt_tokens + max_new_tokens)));
    SamplingParams sampling;
    sampling.max_new_tokens = max_new_tokens;
    sampling.temperature = static_cast<float>(request_.temperature);
    sampling.top_p = static_cast<float>(request_.top_p);
    sampling.top_k = static_cast<int32_t>(request_.top_k);
    sampling.seed = seed;
    generation.sampling = sampling;
    TokenStream stream(student_.tokenizer.get(), model().eos_token_ids, request_.chat, on_text);
    generation.on_token = [&stream](const GeneratedTokens& so_far, bool) {
      stream.Push(so_far.ids.back());
    };
    absl::Notification finished;
    absl::StatusOr<InferenceResult> result;
    engine_->Submit(std::move(generation), [&](absl::StatusOr<InferenceResult> done) {
      result = std::move(done);
      finished.Notify();
    });
    finished.WaitForNotification();
    if (!result.ok()) return BadUsage(result.status());
    return ResponseText{stream.End(), result->generated->finish == FinishReason::kLength};
  }

 private:
  absl::StatusOr<std::vector<int32_t>> Encode(const ResponsePrompt& prompt) const {
    std::vector<int32_t> ids;
    for (const int64_t id : prompt.ids) {
      if (id < 0 || id >= model().vocab_size) {
        return InvalidArgument("--prompt-ids: ", id, " is not below the vocabulary size ",
                               model().vocab_size);
      }
      ids.push_back(static_cast<int32_t>(id));
    }
    if (prompt.ids.empty() && student_.tokenizer == nullptr)
      return InvalidArgument(request_.model_dir, " has no tokenizer.json: give --prompt-ids");
    if (!prompt.messages.is_null()) {
      TAOPD_ASSIGN_OR_RETURN(const std::string text, prompts_.render(prompt.messages));
      ids = student_.tokenizer->Encode(text, /*add_special_tokens=*/false);
    } else if (prompt.ids.empty()) {
      ids = student_.tokenizer->Encode(prompt.text, /*add_special_tokens=*/true);
    }
    if (ids.empty()) return InvalidArgument("the prompt is empty");
    return ids;
  }

  // Returns the requested length, or the default, which ends at the model's last position. In a
  // chat the requested length ends there, too.
  absl::StatusOr<int64_t> MaxNewTokens(int64_t num_prompt_tokens) const {
    int64_t num_positions = model().max_position_embeddings;
    if (engine_ != nullptr)
      num_positions = std::min(num_positions, engine_->limits().max_generation_len);
    const int64_t room = num_positions - num_prompt_tokens;
    const std::optional<int64_t>& asked = request_.max_new_tokens;
    if (room < 1) {
      return InvalidArgument("prompt of ", num_prompt_tokens,
                             " tokens leaves no room in max_position_embeddings ", num_positions);
    }
    if (!asked) return std::min(kDefaultMaxNewTokens, room);
    if (*asked <= room || request_.chat) return std::min(*asked, room);
    return InvalidArgument("prompt of ", num_prompt_tokens, " tokens + --max-new-tokens ", *asked,
                           " exceeds max_position_embeddings ", num_positions);
  }

  // Makes the engine, if there is none, for sequences of this length or, with 0, of any that the
  // model and the KV cache allow.
  absl::Status Start(int64_t max_model_len) {
    if (engine_ != nullptr) return absl::OkStatus();
    EngineOptions options;
    options.max_num_seqs = 1;
    options.max_model_len = max_model_len;
    TAOPD_ASSIGN_OR_RETURN(engine_, MakeTorchEngine(student_.decoder, options));
    return absl::OkStatus();
  }

  const ModelConfig& model() const { return student_.decoder->config(); }

  const GenerateRequest request_;
  const Student student_;
  const PromptModel prompts_;
  std::unique_ptr<InferenceEngine> engine_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ResponseGenerator>> MakeLocalGenerator(
    const GenerateRequest& request) {
  SetNumThreads(0);
  TAOPD_ASSIGN_OR_RETURN(Student student, BadModel(LoadStudent(request.model_dir, request.dtype,
                                                               request.device, nullptr)));
  PromptModel prompts;
  if (request.chat) {
    DataConfig data;
    data.chat_template_kwargs = request.chat_template_kwargs;
    TAOPD_ASSIGN_OR_RETURN(prompts, BadData(PromptModelOf(data, student)));
    if (prompts.render == nullptr) {
      return BadUsage(InvalidArgument(request.model_dir,
                                      " has no chat template: give --prompt without --chat"));
    }
  }
  return std::make_unique<LocalGenerator>(request, std::move(student), std::move(prompts));
}

}  // namespace taopd
