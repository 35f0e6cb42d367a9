// The flat index space of all elements of all parameters. It determines the places of gradients and
// optimizer states in flat buffers, the buckets in which gradients are exchanged, and the elements
// that a shard of the optimizer updates. It does not depend on LibTorch.
//
// Order: The parameters are in the order in which the backward pass completes their gradients: the
// final norm and an untied head, the layers from the last to the first, the embedding. Each
// parameter begins at a multiple of kFlatAlignment; the gaps belong to no parameter and hold zeros.
//
// Buckets: The space is cut into consecutive buckets. A bucket holds whole parameters and at most
// max_bucket_elements elements; a parameter larger than that is cut into buckets of that size.
//
// Sections: A section is a bucket of whole parameters, or all buckets of a parameter that is cut.
// It can have a buffer of its own, because no parameter crosses its ends.
//
// Shards: Each bucket's size is a multiple of num_shards * kFlatAlignment, so every bucket divides
// into num_shards equal slices. Shard s owns slice s of every bucket, which is what a
// reduce-scatter of each bucket leaves with rank s. The layout depends on num_shards; the saved
// state does not, because it is keyed by the parameters' names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace taopd {

// In float32 elements: 4 KiB. It is a multiple of the blocks in which the gradient norm is summed,
// so a parameter that is cut at a multiple of it is summed in the same blocks.
inline constexpr int64_t kFlatAlignment = 1024;

// The range [begin, end) of the flat space.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

// The embedding's number among the layers, as ForwardOptions::on_layer_backward counts them.
inline constexpr int64_t kEmbeddingLayer = -1;
// Returns the layer whose backward pass completes the gradient of the parameter `name` (a Hugging
// Face name): i for model.layers.i., kEmbeddingLayer for the embedding, num_layers for the final
// norm and the head.
int64_t LayerOfParameter(const std::string& name, int64_t num_layers);

// 16 MiB of float32: small enough for the first bucket to be sent early in the backward pass.
inline constexpr int64_t kDefaultBucketElements = int64_t{1} << 22;

struct ParameterLayoutOptions {
  int64_t num_shards = 1;
  int64_t max_bucket_elements = kDefaultBucketElements;
};

// A parameter in the flat space.
struct ParameterSlot {
  std::string name;
  int64_t position = 0;  // index in the list from which the layout was made
  int64_t begin = 0;     // first element in the flat space
  int64_t size = 0;
  int64_t layer = 0;
};

struct GradientBucket {
  FlatRange range;
  // The bucket is complete once the backward pass has reported this layer (the last of its
  // parameters' layers).
  int64_t layer = 0;
};

struct GradientSection {
  FlatRange range;
  int64_t end_bucket = 0;   // the bucket after its last one
  int64_t first_layer = 0;  // the first of its layers that the backward pass reaches
};

// Consecutive elements of one parameter.
struct ParameterPiece {
  int64_t position = 0;  // ParameterSlot::position of the parameter
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
  // `parameters` are in the order of Decoder::Parameters. REQUIRES: the options are positive.
  ParameterLayout(const std::vector<NamedSize>& parameters, const ParameterLayoutOptions& options);

  int64_t size() const { return size_; }  // size of the flat space, including gaps
  int64_t num_shards() const { return num_shards_; }
  const std::vector<ParameterSlot>& slots() const { return slots_; }  // in flat order
  // Returns the buckets in the order in which the backward pass completes them.
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

  // Returns the sections in the same order.
  const std::vector<GradientSection>& sections() const { return sections_; }

  // Returns slice `shard` of a bucket. REQUIRES: 0 <= shard < num_shards().
  FlatRange SliceOfBucket(const GradientBucket& bucket, int64_t shard) const;
  // Returns all slices of a shard in ascending order; adjacent slices are joined. Returns the whole
  // space if there is one shard.
  std::vector<FlatRange> Shard(int64_t shard) const;

  // Returns the pieces of parameters in the ranges (ascending, disjoint), in the order of the
  // parameters' positions.
  std::vector<ParameterPiece> Pieces(const std::vector<FlatRange>& ranges) const;

 private:
  void CutIntoBuckets(int64_t max_bucket_elements);
  void JoinBucketsToSections();

  int64_t num_shards_ = 1;
  int64_t size_ = 0;
  std::vector<ParameterSlot> slots_;
  std::vector<GradientBucket> buckets_;
  std::vector<GradientSection> sections_;
};

}  // namespace taopd
