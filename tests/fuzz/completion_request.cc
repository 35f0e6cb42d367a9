// Fuzz entry: the body of a POST, for the protocols that generate and score. A body that is
// accepted is within the model's limits.
#include "common/base/check.h"
#include "server/http/protocols/protocols.h"
#include "server/http/request/request_body.h"
#include "tests/server/fake_engine.h"

namespace {

const taopd::testing::FakeModel& Fake() {
  static const auto* const fake =
      new taopd::testing::FakeModel(taopd::testing::MakeFakeModel(/*with_tokenizer=*/true));
  return *fake;
}

template <typename Request>
absl::StatusOr<Request> Read(absl::Status (*read)(taopd::JsonFields&, const taopd::ServedModel&,
                                                  Request*),
                             const std::string& body) {
  Request request;
  const absl::Status status = taopd::ReadBody(body, "fuzz", [&](taopd::JsonFields& fields) {
    return read(fields, *Fake().model, &request);
  });
  if (!status.ok()) return status;
  return request;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  (void)Read(taopd::ReadTokenRequest, body);
  (void)Read(taopd::ReadSglangRequest, body);
  const auto parsed = Read(taopd::ReadCompletionRequest, body);
  if (const auto* request = parsed.ok() ? &*parsed : nullptr) {
    TAOPD_CHECK(!request->prompts.empty());
    for (const auto& prompt : request->prompts) {
      const auto num_ids = static_cast<int64_t>(prompt.token_ids.size());
      TAOPD_CHECK(prompt.max_new_tokens >= 1 &&
                  num_ids + prompt.max_new_tokens <= Fake().model->limits.max_model_len);
      if (prompt.text) continue;  // the ids are the tokenizer's
      for (const int32_t id : prompt.token_ids) {
        TAOPD_CHECK(id >= 0 && id < taopd::testing::kFakeVocab);
      }
    }
  }
  return 0;
}
