// The sampling fields of a completion request: names, ranges, defaults and messages.
#include <nlohmann/json.hpp>

#include "server/http/protocols/protocols.h"
#include "tests/server/http/protocol_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

// Knows " a" to " o" as single tokens, 16 to 30.
class SpacedTokenizer final : public FakeTokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const override {
    std::vector<int32_t> ids;
    if (add_special_tokens) ids.push_back(1);
    for (size_t i = 0; i < text.size(); ++i) {
      const bool spaced = text[i] == ' ' && i + 1 < text.size();
      if (spaced) ++i;
      if (text[i] != ' ') ids.push_back(text[i] - 'a' + (spaced ? 16 : 0));
    }
    return ids;
  }
  std::string Decode(const std::vector<int32_t>&, bool) const override { return "x"; }
  std::string TokenBytes(int32_t) const override { return "x"; }
};

// The request of a prompt of one token and these fields.
absl::StatusOr<CompletionRequest> ParseFields(json fields, const ServedModel& model) {
  fields["prompt"] = {1};
  return ReadAs(ReadCompletionRequest, fields.dump(), model);
}

CompletionRequest Accepted(const json& fields, const ServedModel& model) {
  auto parsed = ParseFields(fields, model);
  EXPECT_OK(parsed);
  return parsed.ok() ? *std::move(parsed) : CompletionRequest();
}

CompletionRequest Accepted(const json& fields) {
  return Accepted(fields, *MakeFakeModel(/*with_tokenizer=*/true).model);
}

// tests/server/generation/every_protocol_test.cc has the fields that all protocols share.
TEST(CompletionSamplingTest, ReadsTheFieldsOfTexts) {
  const CompletionRequest request = Accepted({{"top_p", 0.5},
                                              {"logit_bias", {{"4", -200}, {"5", 1.5}}},
                                              {"stop", "bc"},
                                              {"include_stop_str_in_output", true},
                                              {"user", "anyone"},
                                              {"response_format", {{"type", "text"}}}});
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_THAT(request.sampling.logit_bias.entries(), ElementsAre(Pair(4, -100.0f), Pair(5, 1.5f)));
  EXPECT_EQ(request.stop, std::vector<std::string>{"bc"});
  EXPECT_TRUE(request.include_stop_str_in_output);
  EXPECT_THAT(Accepted({{"stop", {"a", "b"}}}).stop, ElementsAre("a", "b"));
}

// A model may have ids that end a sequence besides the tokenizer's own; they are reported as stop
// ids.
TEST(CompletionSamplingTest, FurtherEndsOfSequenceAreStopIdsUnlessTheyAreIgnored) {
  const FakeModel fake = MakeFakeModel();
  fake.model->further_eos_ids = {9, 6};
  const auto stop_ids = [&](const json& fields) {
    return Accepted(fields, *fake.model).sampling.stop_token_ids;
  };
  EXPECT_THAT(stop_ids({{"stop_token_ids", {6}}}), ElementsAre(6, 9));
  EXPECT_THAT(stop_ids(json::object()), ElementsAre(9, 6));
  EXPECT_THAT(stop_ids({{"stop_token_ids", {6}}, {"ignore_eos", true}}), ElementsAre(6));
}

TEST(CompletionSamplingTest, SilentRequestsHaveTheModelsDefaults) {
  const FakeModel fake = MakeFakeModel();
  fake.model->sampling_defaults.temperature = 0.5f;
  fake.model->sampling_defaults.top_k = 20;
  const SamplingParams silent = Accepted(json::object(), *fake.model).sampling;
  EXPECT_EQ(silent.temperature, 0.5f);
  EXPECT_EQ(silent.top_k, 20);
  EXPECT_EQ(silent.top_p, 1.0f);
  const SamplingParams asked =
      Accepted({{"temperature", 1}, {"top_k", 0}, {"top_p", nullptr}}, *fake.model).sampling;
  EXPECT_EQ(asked.temperature, 1.0f);
  EXPECT_EQ(asked.top_k, 0);
}

TEST(CompletionSamplingTest, TextFieldsNeedATokenizer) {
  const FakeModel fake = MakeFakeModel();
  EXPECT_ERROR(ParseFields({{"stop", "a"}}, *fake.model), kInvalidArgument,
               "stop is text, but the model directory has no tokenizer.json");
  EXPECT_ERROR(ParseFields({{"bad_words", {"a"}}}, *fake.model), kInvalidArgument,
               "bad_words is text");
}

TEST(CompletionSamplingTest, BadWordsAreForbiddenWithAndWithoutALeadingSpace) {
  const FakeModel fake = MakeFakeModel();
  fake.model->tokenizer = std::make_unique<SpacedTokenizer>();
  // "b" and " b"; "bc" and " bc"; the leading space and the second "b" change nothing.
  EXPECT_THAT(Accepted({{"bad_words", {"b", " bc", "b"}}}, *fake.model).sampling.bad_words_ids,
              ElementsAre(ElementsAre(1), ElementsAre(17), ElementsAre(1, 2), ElementsAre(17, 2)));
  // The other tokenizer makes the space a token of its own.
  EXPECT_THAT(Accepted({{"bad_words", {"b"}}}).sampling.bad_words_ids, ElementsAre(ElementsAre(1)));
}

}  // namespace
}  // namespace taopd::testing
