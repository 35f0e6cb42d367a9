#include "trainer/optim/parameter_layout.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "common/base/check.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

constexpr char kLayers[] = ".layers.";

// Returns the number after ".layers.", or -1 if there is none.
int64_t LayerInName(const std::string& name) {
  const size_t found = name.find(kLayers);
  if (found == std::string::npos) return -1;
  int64_t layer = -1;
  std::from_chars(name.data() + found + sizeof(kLayers) - 1, name.data() + name.size(), layer);
  return layer;
}

}  // namespace

int64_t LayerOfParameter(const std::string& name, int64_t num_layers) {
  const int64_t layer = LayerInName(name);
  if (layer >= 0) return layer;
  return name.find("embed") != std::string::npos ? kEmbeddingLayer : num_layers;
}

ParameterLayout::ParameterLayout(const std::vector<NamedSize>& parameters,
                                 const ParameterLayoutOptions& options)
    : num_shards_(options.num_shards) {
  TAOPD_CHECK(options.num_shards > 0 && options.max_bucket_elements > 0);
  int64_t num_layers = 0;
  for (const NamedSize& parameter : parameters) {
    num_layers = std::max(num_layers, LayerInName(parameter.name) + 1);
  }
  for (const NamedSize& parameter : parameters) {
    slots_.push_back({parameter.name, static_cast<int64_t>(slots_.size()), 0, parameter.size,
                      LayerOfParameter(parameter.name, num_layers)});
  }
  // Within a layer, the parameters that the forward pass uses last come first.
  std::ranges::sort(slots_, [](const ParameterSlot& a, const ParameterSlot& b) {
    return a.layer != b.layer ? a.layer > b.layer : a.position > b.position;
  });

  CutIntoBuckets(options.max_bucket_elements);
  JoinBucketsToSections();
}

void ParameterLayout::CutIntoBuckets(int64_t max_bucket_elements) {
  const int64_t unit = num_shards_ * kFlatAlignment;
  const int64_t max_size = std::max(unit, max_bucket_elements / unit * unit);
  int64_t bucket_begin = 0;
  for (ParameterSlot& slot : slots_) {
    const int64_t aligned_size = RoundUp(slot.size, kFlatAlignment);
    if (size_ > bucket_begin && size_ - bucket_begin + aligned_size > max_size) {
      size_ = bucket_begin + RoundUp(size_ - bucket_begin, unit);
      buckets_.push_back({{bucket_begin, size_}});
      bucket_begin = size_;
    }
    slot.begin = size_;
    size_ += aligned_size;
    for (; size_ - bucket_begin > max_size; bucket_begin += max_size) {
      buckets_.push_back({{bucket_begin, bucket_begin + max_size}});
    }
  }
  if (size_ > bucket_begin) {
    size_ = bucket_begin + RoundUp(size_ - bucket_begin, unit);
    buckets_.push_back({{bucket_begin, size_}});
  }
  for (GradientBucket& bucket : buckets_) {
    // The last slot that begins in or before the bucket decides, because layers decrease from slot
    // to slot.
    const auto behind = std::partition_point(
        slots_.begin(), slots_.end(),
        [&](const ParameterSlot& slot) { return slot.begin < bucket.range.end; });
    bucket.layer = std::prev(behind)->layer;
  }
}

void ParameterLayout::JoinBucketsToSections() {
  auto slot = slots_.begin();
  GradientSection section;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const int64_t end = buckets_[i].range.end;
    if (section.range.size() == 0) section.first_layer = slot->layer;
    section.range.end = end;
    section.end_bucket = static_cast<int64_t>(i) + 1;
    while (slot != slots_.end() && slot->begin + slot->size <= end) ++slot;
    // The parameter continues in the next bucket.
    if (slot != slots_.end() && slot->begin < end) continue;
    sections_.push_back(section);
    section.range.begin = end;
  }
}

FlatRange ParameterLayout::SliceOfBucket(const GradientBucket& bucket, int64_t shard) const {
  TAOPD_CHECK(shard >= 0 && shard < num_shards_);
  const int64_t slice_size = bucket.range.size() / num_shards_;
  const int64_t begin = bucket.range.begin + shard * slice_size;
  return {begin, begin + slice_size};
}

std::vector<FlatRange> ParameterLayout::Shard(int64_t shard) const {
  std::vector<FlatRange> ranges;
  for (const GradientBucket& bucket : buckets_) {
    const FlatRange slice = SliceOfBucket(bucket, shard);
    if (!ranges.empty() && ranges.back().end == slice.begin) {
      ranges.back().end = slice.end;
    } else {
      ranges.push_back(slice);
    }
  }
  return ranges;
}

std::vector<ParameterPiece> ParameterLayout::Pieces(const std::vector<FlatRange>& ranges) const {
  std::vector<ParameterPiece> pieces;
  auto range = ranges.begin();
  for (const ParameterSlot& slot : slots_) {
    const int64_t slot_end = slot.begin + slot.size;
    while (range != ranges.end() && range->end <= slot.begin) ++range;
    for (auto it = range; it != ranges.end() && it->begin < slot_end; ++it) {
      const int64_t begin = std::max(slot.begin, it->begin), end = std::min(slot_end, it->end);
      if (begin >= end) continue;
      const int64_t offset = begin - slot.begin;
      pieces.push_back({slot.position, offset, end - begin, begin});
    }
  }
  std::ranges::sort(pieces, [](const ParameterPiece& a, const ParameterPiece& b) {
    return a.position != b.position ? a.position < b.position : a.offset < b.offset;
  });
  return pieces;
}

}  // namespace taopd
