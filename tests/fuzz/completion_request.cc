// Fuzz entry: the body of a POST, for the protocols that generate and score. A body that is
// accepted is within the model's limits.
#include "server/http/completions/completion_request.h"
#include "common/base/check.h"
#include "server/http/generate/token_request.h"
#include "server/http/sglang/sglang_request.h"
#include "tests/server/fake_engine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto fake = taopd::testing::MakeFakeModel(/*with_tokenizer=*/true);
  const std::string body(reinterpret_cast<const char*>(data), size);
  (void)taopd::ParseTokenRequest(body, *fake.model);
  (void)taopd::ParseSglangRequest(body, *fake.model);
  const auto parsed = taopd::ParseCompletionRequest(body, *fake.model);
  if (const auto* request = parsed.ok() ? &*parsed : nullptr) {
    TAOPD_CHECK(!request->prompts.empty());
    for (const auto& prompt : request->prompts) {
      const auto num_ids = static_cast<int64_t>(prompt.token_ids.size());
      TAOPD_CHECK(prompt.max_new_tokens >= 1 &&
                  num_ids + prompt.max_new_tokens <= fake.model->limits.max_model_len);
      if (prompt.text) continue;  // the ids are the tokenizer's
      for (const int32_t id : prompt.token_ids) {
        TAOPD_CHECK(id >= 0 && id < taopd::testing::kFakeVocab);
      }
    }
  }
  return 0;
}
