#include "server/serving/sampling_fields.h"

#include <cmath>

#include "common/engine/request_validation.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

class SamplingDefaultsTest : public ::testing::Test {
 protected:
  absl::StatusOr<SamplingParams> Load(const std::string& text) {
    testing::WriteFile(dir_.File("generation_config.json"), text);
    return LoadSamplingDefaults(dir_.path());
  }

  const testing::TempDir dir_;
};

TEST_F(SamplingDefaultsTest, FileReplacesDefaults) {
  const auto defaults = Load(
      "{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"min_p\":0.125,"
      "\"repetition_penalty\":1.05,\"eos_token_id\":[1,2],\"do_sample\":true,"
      "\"presence_penalty\":1.5,\"transformers_version\":\"4.51.0\"}");
  ASSERT_OK(defaults);
  EXPECT_EQ(defaults->temperature, 0.6f);
  EXPECT_EQ(defaults->top_p, 0.95f);
  EXPECT_EQ(defaults->top_k, 20);
  EXPECT_EQ(defaults->min_p, 0.125f);
  EXPECT_EQ(defaults->repetition_penalty, 1.05f);
  EXPECT_EQ(defaults->presence_penalty, 0.0f);  // vLLM takes no default of this one
  EXPECT_TRUE(defaults->stop_token_ids.empty());
}

TEST_F(SamplingDefaultsTest, AbsentValuesAndFilesChangeNothing) {
  const auto silent = Load("{\"temperature\":null}");
  ASSERT_OK(silent);
  EXPECT_EQ(silent->temperature, 1.0f);
  const auto no_file = LoadSamplingDefaults(dir_.File("no_such_dir"));
  ASSERT_OK(no_file);
  EXPECT_EQ(no_file->top_k, 0);
}

TEST_F(SamplingDefaultsTest, BadValuesNameFileKeyAndValue) {
  EXPECT_ERROR(Load("{\"temperature\":\"warm\"}"), absl::StatusCode::kInvalidArgument,
               "generation_config.json: temperature is \"warm\": must be a number");
  EXPECT_ERROR(Load("{\"top_k\":1.5}"), absl::StatusCode::kInvalidArgument,
               "top_k is 1.5: must be an integer");
  EXPECT_ERROR(Load("{\"top_p\":1.5}"), absl::StatusCode::kInvalidArgument,
               "generation_config.json: top_p must be in (0, 1], got 1.5");
  EXPECT_ERROR(Load("[]"), absl::StatusCode::kInvalidArgument, "must be a JSON object");
}

TEST(SamplingFieldsTest, CopiesAreEstimated) {
  SamplingParams sampling;
  EXPECT_EQ(SamplingBytes(sampling), 0);
  sampling.stop_token_ids = {1, 2};
  sampling.allowed_token_ids = {1, 2, 3};
  EXPECT_EQ(SamplingBytes(sampling), 5 * 4);
  sampling.bad_words_ids = {{1, 2, 3}};
  sampling.logit_bias = {{7, 1.0f}, {8, 1.0f}};
  EXPECT_EQ(SamplingBytes(sampling), 8 * 4 + 64);  // copies share the biases
  EXPECT_EQ(StringsBytes({}), 0);
  EXPECT_GE(StringsBytes(std::vector<std::string>{std::string(100, 'x'), "y"}), 101);
}

// What the table accepts, the engine accepts.
TEST(SamplingFieldsTest, RangesAreWithinTheEngines) {
  const EngineLimits limits = {.vocab_size = 32, .max_model_len = 64};
  for (const SamplingField& field : SamplingFields()) {
    for (double value : {-1e300, -3.0, -2.0, -1.0, 0.0, 1e-300, 0.5, 1.0, 2.0, 3.0, 1e300}) {
      if (field.is_integer && value != std::floor(value)) continue;
      InferenceRequest request;
      request.token_ids = {1};
      request.sampling.emplace();
      if (!SetSamplingField(field, value, &*request.sampling).ok()) continue;
      SCOPED_TRACE(Concat(field.name, " ", value));
      EXPECT_OK(ValidateRequest(request, limits));
    }
  }
}

}  // namespace
}  // namespace taopd
