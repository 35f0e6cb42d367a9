#include "trainer/rollout/vllm/untied_head.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "common/io/safetensors/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// Two shards, of which the second has the embedding.
void WriteModel(const std::string& dir, const std::vector<float>& embedding) {
  const std::vector<float> norm = {7};
  std::filesystem::create_directory(dir);
  ASSERT_OK(WriteSafetensors(dir + "/model-1.safetensors",
                             {{"model.norm.weight", "F32", {1}, std::as_bytes(std::span(norm))}}));
  ASSERT_OK(WriteSafetensors(
      dir + "/model-2.safetensors",
      {{"model.embed_tokens.weight", "F32", {3, 2}, std::as_bytes(std::span(embedding))}}));
  WriteFile(dir + "/model.safetensors.index.json",
            R"({"weight_map": {"model.norm.weight": "model-1.safetensors",
                         "model.embed_tokens.weight": "model-2.safetensors"}})");
  WriteFile(dir + "/config.json", "{}");
}

TEST(UntiedHeadTest, AddsACopyOfTheEmbedding) {
  const TempDir dir;
  const std::vector<float> embedding = {1, 2, 3, 4, 5, 6};
  WriteModel(dir.File("step-1"), embedding);
  {
    ASSERT_OK_AND_ASSIGN(const auto untied,
                         UntiedHead::Make(dir.File("step-1"), dir.File("step-1-untied")));
    // Readers that take all *.safetensors, as vLLM does without an index, find all tensors.
    EXPECT_FALSE(std::filesystem::exists(untied->path() + "/model.safetensors.index.json"));
    EXPECT_TRUE(std::filesystem::exists(untied->path() + "/config.json"));
    std::map<std::string, TensorView> tensors;
    std::vector<std::shared_ptr<const SafetensorsFile>> files;
    for (const auto& entry : std::filesystem::directory_iterator(untied->path())) {
      if (entry.path().extension() != ".safetensors") continue;
      ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(entry.path()));
      for (const auto& [name, view] : file->tensors()) tensors[name] = view;
      files.push_back(file);
    }
    ASSERT_EQ(tensors.size(), 3);
    const TensorView& head = tensors.at("lm_head.weight");
    EXPECT_EQ(head.shape, (std::vector<int64_t>{3, 2}));
    EXPECT_TRUE(std::ranges::equal(head.bytes, std::as_bytes(std::span(embedding))));
    EXPECT_TRUE(std::ranges::equal(tensors.at("model.embed_tokens.weight").bytes, head.bytes));
    // The links stay right when the folder of both is seen under another path.
    const std::string link = std::filesystem::read_symlink(untied->path() + "/config.json");
    EXPECT_EQ(link, "../step-1/config.json");
  }
  EXPECT_FALSE(std::filesystem::exists(dir.File("step-1-untied")));
  EXPECT_TRUE(std::filesystem::exists(dir.File("step-1/model-2.safetensors")));
}

TEST(UntiedHeadTest, ReplacesWhatADeadProcessHasLeft) {
  const TempDir dir;
  WriteModel(dir.File("a"), {1, 2, 3, 4, 5, 6});
  std::filesystem::create_directory(dir.File("b"));
  WriteFile(dir.File("b/half"), "x");
  ASSERT_OK_AND_ASSIGN(const auto untied, UntiedHead::Make(dir.File("a"), dir.File("b")));
  EXPECT_FALSE(std::filesystem::exists(dir.File("b/half")));
}

TEST(UntiedHeadTest, RefusesAModelWithoutAnEmbedding) {
  const TempDir dir;
  std::filesystem::create_directory(dir.File("a"));
  const std::vector<float> norm = {7};
  ASSERT_OK(WriteSafetensors(dir.File("a/model.safetensors"),
                             {{"model.norm.weight", "F32", {1}, std::as_bytes(std::span(norm))}}));
  EXPECT_ERROR(UntiedHead::Make(dir.File("a"), dir.File("b")), kDataLoss,
               "no tensor model.embed_tokens.weight");
  EXPECT_FALSE(std::filesystem::exists(dir.File("b")));
}

}  // namespace
}  // namespace taopd::testing
