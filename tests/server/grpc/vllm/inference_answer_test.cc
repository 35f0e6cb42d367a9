#include "server/grpc/vllm/inference_answer.h"

#include <gtest/gtest.h>

#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// An id that is a byte that no text in UTF-8 has; id v else is the letter 'a' + v.
constexpr int32_t kBroken = 30;

// Feeds ids one by one, as the engine does; the pieces of the answer.
struct Feed {
  explicit Feed(GenerationRequest asked)
      : request(std::make_shared<const GenerationRequest>(std::move(asked))) {}

  // The last id ends the sequence, or a stop string does.
  std::vector<vllm::SequenceOutput> Run(const std::vector<int32_t>& ids, FinishReason finish) {
    InferenceOutput output(&tokenizer, {}, request);
    GeneratedText stopping(&tokenizer, *request);
    std::vector<vllm::SequenceOutput> pieces;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool stopped = stopping.Push(ids[i]);
      const bool is_last = stopped || i + 1 == ids.size();
      ChoiceUpdate update = {.choice = 0, .tokens = {}, .is_last = is_last};
      update.tokens.ids = {ids[i]};
      update.tokens.finish = stopped ? FinishReason::kStop : finish;
      pieces.push_back(output.Take(update.tokens, update.is_last));
      if (is_last) break;
    }
    return pieces;
  }
  static std::string Text(const std::vector<vllm::SequenceOutput>& pieces) {
    std::string text;
    for (const auto& piece : pieces) text += piece.text();
    return text;
  }

  const BrokenTokenizer tokenizer{kBroken};
  const std::shared_ptr<const GenerationRequest> request;
};

TEST(InferenceOutputTest, APieceOfTextIsHeldBackWhileItMayBecomeAStopString) {
  const GenerationRequest request = {.stop = {"cd"}};
  Feed feed(request);
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
  GenerationRequest request = {.stop = {"b"}, .include_stop_str_in_output = true};
  request.sampling.min_tokens = 2;
  Feed feed(request);
  EXPECT_EQ(Feed::Text(feed.Run({0, 1, 2, 1, 5}, FinishReason::kLength)), "abcb");
}

TEST(InferenceOutputTest, TheTextOfAStopIdIsNoPartUnlessAskedFor) {
  for (const bool include : {false, true}) {
    GenerationRequest request = {.include_stop_str_in_output = include};
    request.sampling.stop_token_ids = {7};
    Feed feed(request);
    const auto pieces = feed.Run({0, 1, 7}, FinishReason::kStop);
    EXPECT_EQ(Feed::Text(pieces), include ? "abh" : "ab");
    EXPECT_EQ(pieces.back().finish_info().stop_token_id(), 7u);
  }
  Feed feed({});
  EXPECT_EQ(feed.Run({0, 9}, FinishReason::kStop).back().finish_info().eos_token_id(), 9u);
}

// The same happens over HTTP and in vLLM.
TEST(InferenceOutputTest, ABrokenCharacterIsHeldBackAndDroppedAtTheEnd) {
  Feed feed({});
  const auto pieces = feed.Run({0, kBroken, 1}, FinishReason::kLength);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1].text(), "");
  EXPECT_EQ(pieces[2].text(),
            "\xEF\xBF\xBD"
            "b");
  const auto cut = feed.Run({0, kBroken}, FinishReason::kLength);
  EXPECT_EQ(Feed::Text(cut), "a");
  EXPECT_EQ(cut.back().finish_info().finish_reason(), vllm::LENGTH);
}

TEST(InferenceOutputTest, SeveralTokensInOneTake) {
  InferenceAnswerOptions options;
  options.ids = options.logprobs = options.candidates = true;
  const BrokenTokenizer tokenizer{kBroken};
  InferenceOutput output(&tokenizer, options, std::make_shared<GenerationRequest>());
  const GeneratedTokens tokens = {.ids = {2, 3},
                                  .raw_log_probs = {-0.5f, -1.5f},
                                  .ranks = {1, 4},
                                  .top_ids = {2, 5, 6, 3},
                                  .top_log_probs = {-0.5f, -1.0f, -0.25f, -1.5f}};
  const vllm::SequenceOutput out = output.Take(tokens);
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

TEST(InferenceOutputTest, PositionZeroOfThePromptHasNoPrediction) {
  const auto request = std::make_shared<GenerationRequest>();
  request->prompt_logprobs = 2;
  request->prompts.resize(1);
  request->prompts[0].token_ids = {3, 8};
  const InferenceOutput output(nullptr, {.prompt_ids = true, .text = false}, request);
  const ScoreRows rows = {.num_rows = 1,
                          .top_k = 2,
                          .ids = {4, 5},
                          .log_probs = {-0.5f, -0.75f},
                          .sampled_log_probs = {-2.0f},
                          .sampled_ranks = {9}};
  const vllm::PromptInfo info = output.Prompt(rows);
  EXPECT_EQ(info.num_prompt_tokens(), 2u);
  EXPECT_THAT(info.token_ids(), ElementsAre(3, 8));
  EXPECT_THAT(info.logprobs(), ElementsAre(0.0f, -2.0f));
  EXPECT_THAT(info.ranks(), ElementsAre(0, 9));
  EXPECT_EQ(info.candidate_tokens(0).tokens_size(), 0);
  EXPECT_EQ(info.candidate_tokens(1).tokens(1).id(), 5u);
  request->prompts[0].token_ids = {3};
  EXPECT_EQ(output.Prompt(std::nullopt).logprobs_size(), 1);
}

}  // namespace
}  // namespace taopd::testing
