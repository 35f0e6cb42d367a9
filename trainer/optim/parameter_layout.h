// One index space for all elements of all parameters: where each parameter's gradient and optimizer
// state lie in flat buffers, in which buckets gradients are exchanged, and which elements a shard
// of the optimizer updates. No LibTorch here.
//
// Order: the parameters lie in the order in which the backward pass completes their gradients: the
// final norm and an untied head, the layers from the last to the first, the embedding. Each begins
// at a multiple of kFlatAlignment; the gaps belong to no parameter and hold zeros.
//
// Buckets: the space is cut into consecutive buckets. A bucket holds whole parameters and at most
// max_bucket_elements, except that a parameter that is larger is cut into buckets of that size.
//
// Sections: the shortest runs of whole buckets in which no parameter continues another one's: a
// bucket of whole parameters, or the buckets of a parameter that is cut. A section can have a
// buffer of its own.
//
// Shards: each bucket's size is a multiple of num_shards * kFlatAlignment, so every bucket, and
// with them the whole space, cuts into num_shards equal slices. Shard s owns slice s of every
// bucket, which is what a reduce-scatter of each bucket leaves with rank s. The layout depends on
// num_shards; what is saved does not, because it is saved by the parameters' names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace taopd {

// float32 elements: 4 KiB. The blocks in which the gradient norm is summed divide it, so a
// parameter that is cut at a multiple of it is summed in the same blocks.
inline constexpr int64_t kFlatAlignment = 1024;

// [begin, end) of the flat space.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

// The embedding's number among the layers, as ForwardOptions::on_layer_backward counts them.
inline constexpr int64_t kEmbeddingLayer = -1;
// Returns the layer by which the gradient of the parameter `name` (a Hugging Face name) is
// complete: i for model.layers.i., kEmbeddingLayer for the embedding, num_layers for the final norm
// and the head.
int64_t LayerOfParameter(const std::string& name, int64_t num_layers);

// 16 MiB of float32: small enough that the first is sent early in the backward pass.
inline constexpr int64_t kDefaultBucketElements = int64_t{1} << 22;

struct ParameterLayoutOptions {
  int64_t num_shards = 1;
  int64_t max_bucket_elements = kDefaultBucketElements;
};

// A parameter in the flat space.
struct ParameterSlot {
  std::string name;
  int64_t position = 0;  // in the list that the layout was made from
  int64_t begin = 0;     // of its elements in the flat space
  int64_t size = 0;
  int64_t layer = 0;
};

struct GradientBucket {
  FlatRange range;
  // Complete once the backward pass has reported this layer (the last of its parameters' layers).
  int64_t layer = 0;
};

struct GradientSection {
  FlatRange range;
  int64_t first_bucket = 0;  // [first_bucket, end_bucket)
  int64_t end_bucket = 0;
  int64_t first_layer = 0;  // the first of its layers that the backward pass comes to
};

// Consecutive elements of one parameter.
struct ParameterPiece {
  int64_t position = 0;  // of the parameter, as ParameterSlot::position
  int64_t offset = 0;    // within the parameter
  int64_t size = 0;
  int64_t flat_begin = 0;
};

class ParameterLayout {
 public:
  struct NamedSize {
    std::string name;
    int64_t size = 0;
  };
  // `parameters` in the order of Decoder::Parameters. REQUIRES: the options are positive.
  ParameterLayout(const std::vector<NamedSize>& parameters, const ParameterLayoutOptions& options);

  int64_t size() const { return size_; }  // of the flat space, gaps included
  int64_t num_shards() const { return num_shards_; }
  const std::vector<ParameterSlot>& slots() const { return slots_; }  // in flat order
  const ParameterSlot& slot(int64_t position) const { return slots_[slot_of_[position]]; }
  // In the order in which the backward pass completes them.
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

  // In the same order.
  const std::vector<GradientSection>& sections() const { return sections_; }

  // Slice `shard` of a bucket. REQUIRES: 0 <= shard < num_shards().
  FlatRange SliceOfBucket(const GradientBucket& bucket, int64_t shard) const;
  // All slices of a shard, ascending; slices that touch are joined. The whole space for one shard.
  std::vector<FlatRange> Shard(int64_t shard) const;

  // What the ranges (ascending, disjoint) hold of the parameters, in the order of the parameters'
  // positions.
  std::vector<ParameterPiece> Pieces(const std::vector<FlatRange>& ranges) const;

 private:
  void CutIntoBuckets(int64_t max_bucket_elements);
  void JoinBucketsToSections();

  int64_t num_shards_ = 1;
  int64_t size_ = 0;
  std::vector<ParameterSlot> slots_;
  std::vector<int64_t> slot_of_;  // by position
  std::vector<GradientBucket> buckets_;
  std::vector<GradientSection> sections_;
};

}  // namespace taopd
