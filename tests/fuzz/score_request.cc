// Fuzz entry: a serialized ScoreRequest. What is taken is within the model's limits, and its memory
// within what was added up from the bytes.
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>

#include <limits>

#include "common/base/check.h"
#include "server/grpc/calls/parsed_size.h"
#include "server/grpc/teacher/score_admission.h"
#include "tests/server/fake_engine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const state = [] {
    auto* made = new taopd::ServingState(taopd::Clock::Real(), absl::Seconds(60));
    made->SetReady(taopd::testing::MakeFakeModel(/*with_tokenizer=*/false).model);
    return made;
  }();
  // protobuf would print a line for each text that is no UTF-8.
  [[maybe_unused]] static auto* const printed = google::protobuf::SetLogHandler(nullptr);
  taopd::v1::ScoreRequest message;
  google::protobuf::io::ArrayInputStream bytes(data, static_cast<int>(size));
  const auto parsed_size = taopd::ParsedSize(*message.GetDescriptor(), static_cast<int>(size),
                                             std::numeric_limits<int64_t>::max(), &bytes);
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  TAOPD_CHECK(parsed_size.ok());
  TAOPD_CHECK_GE(*parsed_size, static_cast<int64_t>(message.SpaceUsedLong()));
  const auto admitted = taopd::AdmitScore(message, {.client = "client"}, *state);
  if (!admitted.ok()) {
    TAOPD_CHECK(!admitted.status().message().empty());
    return 0;
  }
  for (const int32_t id : admitted->requests[0].token_ids) {
    TAOPD_CHECK(id >= 0 && id < taopd::testing::kFakeVocab);
  }
  return 0;
}
