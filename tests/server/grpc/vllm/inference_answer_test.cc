#include "server/grpc/vllm/inference_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/fake_engine.h"

namespace taopd {
namespace {

using ::testing::ElementsAre;

// Feeds ids one by one, as the engine does; the pieces of the answer.
struct Feed {
  Feed(const InferenceAnswerOptions& options, const SamplingParams& sampling)
      : output(&tokenizer, options, sampling) {}

  // The last id ends the sequence, or a stop string does.
  std::vector<vllm::SequenceOutput> Run(const std::vector<int32_t>& ids, FinishReason finish) {
    std::vector<vllm::SequenceOutput> pieces;
    GeneratedTokens so_far;
    for (size_t i = 0; i < ids.size(); ++i) {
      so_far.ids.push_back(ids[i]);
      const bool stopped = output.Push(ids[i]);
      const bool is_last = stopped || i + 1 == ids.size();
      if (is_last) so_far.finish = stopped ? FinishReason::kStop : finish;
      pieces.push_back(output.Take(so_far, is_last));
      if (is_last) break;
    }
    return pieces;
  }
  static std::string Text(const std::vector<vllm::SequenceOutput>& pieces) {
    std::string text;
    for (const auto& piece : pieces) text += piece.text();
    return text;
  }

  testing::FakeTokenizer tokenizer;
  InferenceOutput output;
};

TEST(InferenceOutputTest, APieceOfTextIsHeldBackWhileItMayBecomeAStopString) {
  InferenceAnswerOptions options;
  options.stop_strings = {"cd"};
  Feed feed(options, {});
  const auto pieces = feed.Run({0, 1, 2, 3, 4}, FinishReason::kLength);  // a b c d
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[1].text(), "b");
  EXPECT_EQ(pieces[2].text(), "");  // c
  EXPECT_EQ(Feed::Text(pieces), "ab");
  EXPECT_EQ(pieces.back().finish_info().stop_string(), "cd");
  EXPECT_EQ(pieces.back().finish_info().finish_reason(), vllm::STOP);
  EXPECT_EQ(pieces.back().finish_info().num_output_tokens(), 4u);
}

TEST(InferenceOutputTest, StopStringsCanBeIncludedAndDoNotCountWithinMinTokens) {
  InferenceAnswerOptions options;
  options.stop_strings = {"b"};
  options.include_stop_strings = true;
  SamplingParams sampling;
  sampling.min_tokens = 2;
  Feed feed(options, sampling);
  EXPECT_EQ(Feed::Text(feed.Run({0, 1, 2, 1, 5}, FinishReason::kLength)), "abcb");
}

TEST(InferenceOutputTest, TheTextOfAStopIdIsNoPartUnlessAskedFor) {
  for (const bool include : {false, true}) {
    InferenceAnswerOptions options;
    options.include_stop_strings = include;
    SamplingParams sampling;
    sampling.stop_token_ids = {7};
    Feed feed(options, sampling);
    const auto pieces = feed.Run({0, 1, 7}, FinishReason::kStop);
    EXPECT_EQ(Feed::Text(pieces), include ? "abh" : "ab");
    EXPECT_EQ(pieces.back().finish_info().stop_token_id(), 7u);
  }
  Feed feed({}, {});
  EXPECT_EQ(feed.Run({0, 9}, FinishReason::kStop).back().finish_info().eos_token_id(), 9u);
}

TEST(InferenceOutputTest, ACharacterThatNeverCompletesIsReplacedAtTheEnd) {
  Feed feed({}, {});
  const auto pieces = feed.Run({0, 30}, FinishReason::kLength);
  EXPECT_EQ(Feed::Text(pieces).substr(0, 1), "a");
  EXPECT_FALSE(pieces.back().finish_info().has_stop_string());
  EXPECT_EQ(pieces.back().finish_info().finish_reason(), vllm::LENGTH);
}

TEST(InferenceOutputTest, SeveralTokensInOneTake) {
  InferenceAnswerOptions options;
  options.ids = options.logprobs = options.candidates = true;
  testing::FakeTokenizer tokenizer;
  InferenceOutput output(&tokenizer, options, {});
  GeneratedTokens tokens;
  tokens.ids = {2, 3};
  tokens.raw_log_probs = {-0.5f, -1.5f};
  tokens.ranks = {1, 4};
  tokens.top_ids = {2, 5, 6, 3};
  tokens.top_log_probs = {-0.5f, -1.0f, -0.25f, -1.5f};
  for (int32_t id : tokens.ids) output.Push(id);
  const vllm::SequenceOutput out = output.Take(tokens, true);
  EXPECT_EQ(out.num_tokens(), 2u);
  EXPECT_EQ(out.text(), "cd");
  EXPECT_THAT(out.token_ids(), ElementsAre(2, 3));
  EXPECT_THAT(out.logprobs(), ElementsAre(-0.5f, -1.5f));
  EXPECT_THAT(out.ranks(), ElementsAre(1, 4));
  ASSERT_EQ(out.candidate_tokens_size(), 2);
  EXPECT_EQ(out.candidate_tokens(1).tokens(0).id(), 6u);
  EXPECT_EQ(out.candidate_tokens(1).tokens(1).rank(), 2u);
  EXPECT_EQ(out.candidate_tokens(1).tokens(1).logprob(), -1.5f);
}

TEST(PromptInfoTest, PositionZeroHasNoPrediction) {
  InferenceAnswerOptions options;
  options.prompt_logprobs = options.prompt_ids = true;
  ScoreRows rows;
  rows.num_rows = 1;
  rows.top_k = 2;
  rows.ids = {4, 5};
  rows.log_probs = {-0.5f, -0.75f};
  rows.sampled_log_probs = {-2.0f};
  rows.sampled_ranks = {9};
  const vllm::PromptInfo info = ToPromptInfo({3, 8}, options, &rows);
  EXPECT_EQ(info.num_prompt_tokens(), 2u);
  EXPECT_THAT(info.token_ids(), ElementsAre(3, 8));
  EXPECT_THAT(info.logprobs(), ElementsAre(0.0f, -2.0f));
  EXPECT_THAT(info.ranks(), ElementsAre(0, 9));
  EXPECT_EQ(info.candidate_tokens(0).tokens_size(), 0);
  EXPECT_EQ(info.candidate_tokens(1).tokens(1).id(), 5u);
  EXPECT_EQ(ToPromptInfo({3}, options, nullptr).logprobs_size(), 1);
}

}  // namespace
}  // namespace taopd
