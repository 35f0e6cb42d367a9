// Grammars under the engine: texts of a model with random weights keep to their schema, and depend
// on their request alone.
#include <ATen/Parallel.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/engine/torch_engine.h"
#include "tests/common/engine/result_box.h"
#include "tests/common/model/tiny_models.h"
#include "tests/server/structured/grammar_text.h"

namespace taopd::testing {
namespace {

constexpr int kCount = 24;  // requests of a test
constexpr char kSchema[] = R"({
    "type": "object",
    "properties": {"b": {"enum": ["ab", "ba", 12]}, "a": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
                   "c": {"type": "integer", "minimum": 0, "maximum": 321}},
    "required": ["b", "a", "c"], "additionalProperties": false})";

std::vector<std::string> Vocabulary() {
  std::vector<std::string> bytes = {"", ""};
  for (const char c : std::string("{}[]\":,abcdeflnrstu-0123456789.x"))
    bytes.push_back(std::string(1, c));
  for (const char* text : {"{\"", "\":", "true", "false", "ab", "\",\"", "12", "]", "],\""})
    bytes.push_back(text);
  return bytes;
}

std::shared_ptr<Decoder> NewDecoder() {
  UseOneThread();
  ModelConfig config = TinyConfig("Qwen3ForCausalLM");
  config.vocab_size = static_cast<int64_t>(Vocabulary().size());
  config.eos_token_ids = {kEosId};
  auto decoder = MakeDecoder(config, {"float32", "cpu", false}, RandomStream(7));
  EXPECT_OK(decoder);
  return *std::move(decoder);
}

void ExpectColor(const GeneratedTokens& generated) {
  static const std::vector<std::string> bytes = Vocabulary();
  EXPECT_EQ(generated.finish, FinishReason::kStop);
  EXPECT_EQ(generated.ids.back(), kEosId);
  std::string text;
  for (const int32_t id : generated.ids) text += bytes[id];
  const auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(value.is_object()) << text;
  EXPECT_EQ(value.size(), 3u);
  EXPECT_TRUE(value.at("b") == "ab" || value.at("b") == "ba" || value.at("b") == 12) << text;
  EXPECT_LE(value.at("a").size(), 3u);
  for (const auto& item : value.at("a")) EXPECT_TRUE(item.is_boolean()) << text;
  EXPECT_TRUE(value.at("c").is_number_integer() && value.at("c") >= 0 && value.at("c") <= 321)
      << text;
}

void ExpectTokens(const std::vector<Result>& results, const std::vector<Result>& expected) {
  for (int i = 0; i < kCount; ++i) {
    ASSERT_OK(results[i]);
    EXPECT_EQ(results[i]->generated->ids, expected[i]->generated->ids) << i;
    EXPECT_EQ(results[i]->generated->log_probs, expected[i]->generated->log_probs) << i;
  }
}

class StructuredEngineTest : public ::testing::Test {
 protected:
  StructuredEngineTest() {
    auto grammar =
        compiler_.Compile({.spec = {.text = kSchema, .any_whitespace = false}, .field = "f"});
    EXPECT_OK(grammar);
    options_.max_model_len = 256;
    grammar_ = *std::move(grammar);
  }
  ~StructuredEngineTest() override { at::set_num_threads(1); }

  // Every second request is under the grammar; pairs have one prompt, as n = 2 has.
  InferenceRequest RequestOf(int i) {
    InferenceRequest request;
    request.token_ids.assign(3 + i / 2 % 5 * 20, 5 + i / 2);
    request.sampling.emplace();
    request.sampling->max_new_tokens = 150;
    request.sampling->temperature = i % 5 == 0 ? 0.0f : 1.0f;
    request.sampling->seed = static_cast<uint64_t>(i);
    if (IsMasked(i)) request.sampling->mask = Grammar::NewMask(grammar_, {});
    return request;
  }
  static bool IsMasked(int i) { return i % 3 != 2; }

  void UseBlocks(int64_t num_blocks) {
    options_.kv_cache_bytes =
        num_blocks *
        KvPages::BytesPerBlock(decoder_->config(), decoder_->dtype(), KvPages::Layout::kKernel);
    options_.max_num_batched_tokens = num_blocks == 9 ? 64 : 8192;
  }
  std::vector<Result> Run(int first, int count) {
    auto engine = MakeTorchEngine(decoder_, options_);
    EXPECT_OK(engine);
    std::vector<InferenceRequest> requests;
    for (int i = 0; i < count; ++i) requests.push_back(RequestOf(first + i));
    const std::vector<Result> results = RunAll(engine->get(), std::move(requests));
    num_preempted_ += (*engine)->stats().num_preempted;
    return results;
  }
  // The results of requests that are each computed alone.
  std::vector<Result> RunAlone() {
    std::vector<Result> results;
    for (int i = 0; i < kCount; ++i) results.push_back(Run(i, 1)[0]);
    return results;
  }

  const std::shared_ptr<Decoder> decoder_ = NewDecoder();
  EngineOptions options_;
  GrammarCompiler compiler_{Vocabulary(), {kEosId}, TestOptions()};
  std::shared_ptr<Grammar> grammar_;
  uint64_t num_preempted_ = 0;
};

TEST_F(StructuredEngineTest, TextsKeepToTheSchemaAndDependOnTheRequestAlone) {
  const std::vector<Result> expected = RunAlone();
  for (int i = 0; i < kCount; ++i) {
    ASSERT_OK(expected[i]);
    if (IsMasked(i)) ExpectColor(*expected[i]->generated);
  }
  for (const int64_t num_blocks : {9, 2000}) {
    for (const int num_threads : {1, 3}) {
      SCOPED_TRACE(Concat(num_blocks, " blocks, ", num_threads, " threads"));
      at::set_num_threads(num_threads);
      UseBlocks(num_blocks);
      ASSERT_NO_FATAL_FAILURE(ExpectTokens(Run(0, kCount), expected));
    }
  }
  EXPECT_GT(num_preempted_, 0u);
}

// A mask that reports "not ready" num_late times per token, or always if num_late is negative.
class LateMask final : public LogitMask {
 public:
  LateMask(std::shared_ptr<LogitMask> mask, int num_late)
      : mask_(std::move(mask)), num_late_(num_late), num_left_(num_late) {}

  absl::StatusOr<bool> Mask(std::span<const int32_t> ids, std::span<uint64_t> bits) override {
    EXPECT_EQ(num_left_, 0) << "it was said to be late";
    return mask_->Mask(ids, bits);
  }
  void Prepare(std::span<const int32_t> ids) override {
    if (ids.size() == position_) return;  // computed again
    position_ = ids.size();
    num_left_ = num_late_;
    mask_->Prepare(ids);
  }
  bool IsReady(std::span<const int32_t>, absl::Duration) override {
    if (num_left_ != 0) return num_left_ -= num_left_ > 0, false;
    return true;
  }

 private:
  const std::shared_ptr<LogitMask> mask_;
  const int num_late_;
  int num_left_;
  size_t position_ = SIZE_MAX;
};

// Sequences sit out until their masks are there, each at its own pace, and get the same tokens.
TEST_F(StructuredEngineTest, LateMasksChangeNoToken) {
  const std::vector<Result> expected = RunAlone();
  for (const int64_t num_blocks : {9, 2000}) {
    SCOPED_TRACE(num_blocks);
    UseBlocks(num_blocks);
    ASSERT_OK_AND_ASSIGN(const auto engine, MakeTorchEngine(decoder_, options_));
    std::vector<InferenceRequest> requests;
    for (int i = 0; i < kCount; ++i) {
      requests.push_back(RequestOf(i));
      auto& mask = requests.back().sampling->mask;
      if (mask != nullptr) mask = std::make_shared<LateMask>(mask, i % 4);
    }
    const std::vector<Result> results = RunAll(engine.get(), std::move(requests));
    ASSERT_NO_FATAL_FAILURE(ExpectTokens(results, expected));
    uint64_t num_tokens = 0;
    for (const Result& result : results) num_tokens += result->generated->ids.size();
    EXPECT_EQ(engine->stats().generated_tokens, num_tokens);
    EXPECT_EQ(engine->stats().kv_blocks_in_use, 0);
  }
}

// A mask that never comes holds up nobody else, and its request can still be cancelled or expire.
TEST_F(StructuredEngineTest, AMaskThatNeverComesHoldsUpNobody) {
  ManualClock clock;
  ASSERT_OK_AND_ASSIGN(const auto engine, MakeTorchEngine(decoder_, options_, &clock));
  ResultBox box;
  const auto never = [&](int i) {
    InferenceRequest request = RequestOf(i);  // with a mask
    request.sampling->mask = std::make_shared<LateMask>(request.sampling->mask, -1);
    return request;
  };
  InferenceRequest expiring = never(0);
  expiring.deadline = clock.Now() + absl::Seconds(5);
  const RequestHandle handle = engine->Submit(never(1), box.Done(0));
  engine->Submit(std::move(expiring), box.Done(1));
  engine->Submit(RequestOf(3), box.Done(2));  // with a mask
  engine->Submit(RequestOf(2), box.Done(3));  // without
  EXPECT_OK(box.Wait(2));
  EXPECT_OK(box.Wait(3));
  EXPECT_EQ(engine->stats().num_running, 2);
  clock.Advance(absl::Seconds(10));
  EXPECT_ERROR(box.Wait(1), kDeadlineExceeded, "while the request was running");
  engine->Cancel(handle);
  EXPECT_ERROR(box.Wait(0), kCancelled, "while running");
}

// min_tokens forbids the end where the grammar allows nothing else: an error, and the next request
// does not notice.
TEST_F(StructuredEngineTest, WhatTheGrammarAndTheRequestContradictFailsAlone) {
  ASSERT_OK_AND_ASSIGN(const auto engine, MakeTorchEngine(decoder_, options_));
  InferenceRequest late = RequestOf(1);
  late.sampling->min_tokens = 140;
  InferenceRequest on = RequestOf(1);
  on.sampling->ignore_eos = true;
  const auto results = RunAll(engine.get(), {late, RequestOf(1), on});
  EXPECT_ERROR(results[0], kInvalidArgument, "mask, min_tokens forbid every token");
  const Result& plain = results[1];
  const Result& ignoring = results[2];
  ASSERT_OK(plain);
  ExpectColor(*plain->generated);
  // With ignore_eos the text goes on after its end, as in vLLM.
  ASSERT_OK(ignoring);
  const std::vector<int32_t>& ids = ignoring->generated->ids;
  EXPECT_EQ(ids.size(), 150u);
  EXPECT_TRUE(std::equal(plain->generated->ids.begin(), plain->generated->ids.end(), ids.begin()));
}

}  // namespace
}  // namespace taopd::testing
