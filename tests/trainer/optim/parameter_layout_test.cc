#include "trainer/optim/parameter_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace taopd::testing {
namespace {

// Returns a model of three layers with a tied head or with a head of its own.
std::vector<ParameterLayout::NamedSize> Model(bool own_head) {
  std::vector<ParameterLayout::NamedSize> parameters = {{"model.embed_tokens.weight", 40'000}};
  for (const std::string layer : {"0", "1", "2"}) {
    parameters.push_back({"model.layers." + layer + ".input_layernorm.weight", 64});
    parameters.push_back({"model.layers." + layer + ".mlp.weight", 9'001});
  }
  parameters.push_back({"model.norm.weight", 64});
  if (own_head) parameters.push_back({"lm_head.weight", 40'000});
  return parameters;
}

const ParameterSlot& SlotOf(const ParameterLayout& layout, int64_t position) {
  return *std::find_if(layout.slots().begin(), layout.slots().end(),
                       [&](const ParameterSlot& slot) { return slot.position == position; });
}

TEST(ParameterLayout, ParametersLieInTheOrderOfTheBackwardPass) {
  const auto model = Model(true);
  const ParameterLayout layout(model, {});
  std::vector<std::string> names;
  int64_t end = 0;
  for (const ParameterSlot& slot : layout.slots()) {
    names.push_back(slot.name);
    EXPECT_EQ(slot.begin % kFlatAlignment, 0);
    EXPECT_GE(slot.begin, end);  // no overlap
    end = slot.begin + slot.size;
    EXPECT_EQ(model[slot.position].name, slot.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "lm_head.weight", "model.norm.weight", "model.layers.2.mlp.weight",
                       "model.layers.2.input_layernorm.weight", "model.layers.1.mlp.weight",
                       "model.layers.1.input_layernorm.weight", "model.layers.0.mlp.weight",
                       "model.layers.0.input_layernorm.weight", "model.embed_tokens.weight"}));
  EXPECT_EQ(layout.slots().front().layer, 3);
  EXPECT_EQ(layout.slots().back().layer, kEmbeddingLayer);
}

TEST(ParameterLayout, BucketsAndShardsCutTheSpaceEvenly) {
  for (int64_t num_shards : {1, 2, 3, 5, 8, 64}) {
    for (int64_t max_bucket : {1, 10'000, 20'000, 1 << 24}) {
      const ParameterLayout layout(Model(true), {num_shards, max_bucket});
      int64_t begin = 0, largest = 0;
      for (const GradientBucket& bucket : layout.buckets()) {
        EXPECT_EQ(bucket.range.begin, begin);
        begin = bucket.range.end;
        EXPECT_GT(bucket.range.size(), 0);
        EXPECT_EQ(bucket.range.size() % (num_shards * kFlatAlignment), 0);
        largest = std::max(largest, bucket.range.size());
      }
      EXPECT_EQ(begin, layout.size());
      EXPECT_LE(largest, std::max(max_bucket, num_shards * kFlatAlignment));
      // Every element of the space belongs to one shard.
      std::vector<int> owners(layout.size());
      for (int64_t shard = 0; shard < num_shards; ++shard) {
        int64_t size = 0, end = -1;
        for (const FlatRange& range : layout.Shard(shard)) {
          EXPECT_GT(range.begin, end);
          end = range.end;
          size += range.size();
          for (int64_t i = range.begin; i < range.end; ++i) ++owners[i];
        }
        EXPECT_EQ(size, layout.size() / num_shards);
      }
      EXPECT_EQ(owners, std::vector<int>(layout.size(), 1));
    }
  }
  const ParameterLayout whole(Model(false), {});
  EXPECT_EQ(whole.Shard(0), (std::vector<FlatRange>{{0, whole.size()}}));
}

// A bucket may be sent once its layer has been reported, because no parameter in it belongs to a
// later layer.
TEST(ParameterLayout, ABucketsLayerIsTheLastOfItsParameters) {
  const ParameterLayout layout(Model(false), {2, 12'000});
  ASSERT_GT(layout.buckets().size(), 4u);
  for (const GradientBucket& bucket : layout.buckets()) {
    int64_t last = 100;
    for (const ParameterPiece& piece : layout.Pieces({bucket.range})) {
      last = std::min(last, SlotOf(layout, piece.position).layer);
    }
    EXPECT_EQ(bucket.layer, last);
  }
  EXPECT_EQ(layout.buckets().back().layer, kEmbeddingLayer);
}

// No parameter crosses the end of a section, and no section could be cut in two without cutting a
// parameter.
TEST(ParameterLayout, SectionsAreTheShortestThatHoldWholeParameters) {
  for (const bool own_head : {false, true}) {
    for (const int64_t max_bucket : {1, 10'000, 12'000, 50'000, 1 << 24}) {
      const ParameterLayout layout(Model(own_head), {2, max_bucket});
      int64_t begin = 0, bucket = 0;
      for (const GradientSection& section : layout.sections()) {
        EXPECT_EQ(section.range.begin, begin);
        begin = section.range.end;
        EXPECT_EQ(layout.buckets()[bucket].range.begin, section.range.begin);
        EXPECT_EQ(layout.buckets()[section.end_bucket - 1].range.end, section.range.end);
        int64_t first_layer = kEmbeddingLayer;
        for (const ParameterSlot& slot : layout.slots()) {
          const int64_t end = slot.begin + slot.size;
          if (slot.begin >= section.range.begin && slot.begin < section.range.end) {
            EXPECT_LE(end, section.range.end) << slot.name;
            first_layer = std::max(first_layer, slot.layer);
          }
        }
        EXPECT_EQ(section.first_layer, first_layer);
        // Each end of a bucket in it lies within a parameter.
        for (; bucket + 1 < section.end_bucket; ++bucket) {
          const int64_t cut = layout.buckets()[bucket].range.end;
          EXPECT_TRUE(std::any_of(layout.slots().begin(), layout.slots().end(),
                                  [&](const ParameterSlot& slot) {
                                    return slot.begin < cut && slot.begin + slot.size > cut;
                                  }));
        }
        bucket = section.end_bucket;
      }
      EXPECT_EQ(begin, layout.size());
      EXPECT_EQ(bucket, static_cast<int64_t>(layout.buckets().size()));
    }
  }
}

TEST(ParameterLayout, PiecesCoverEveryParameterOnce) {
  const auto model = Model(true);
  for (int64_t num_shards : {1, 3}) {
    const ParameterLayout layout(model, {num_shards, 15'000});
    std::map<int64_t, std::vector<int>> covered;
    for (size_t i = 0; i < model.size(); ++i) covered[i].resize(model[i].size);
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      int64_t position = -1, offset = -1;
      for (const ParameterPiece& piece : layout.Pieces(layout.Shard(shard))) {
        EXPECT_TRUE(piece.position > position ||
                    (piece.position == position && piece.offset > offset));
        position = piece.position, offset = piece.offset;
        const ParameterSlot& slot = SlotOf(layout, position);
        EXPECT_EQ(piece.flat_begin, slot.begin + offset);
        for (int64_t i = 0; i < piece.size; ++i) ++covered[position][offset + i];
      }
    }
    for (const auto& [position, counts] : covered) {
      EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << model[position].name;
    }
  }
}

TEST(ParameterLayout, NoParametersIsAnEmptySpace) {
  const ParameterLayout layout({}, {4});
  EXPECT_EQ(layout.size(), 0);
  EXPECT_TRUE(layout.buckets().empty());
  EXPECT_TRUE(layout.Pieces(layout.Shard(3)).empty());
}

}  // namespace
}  // namespace taopd::testing
