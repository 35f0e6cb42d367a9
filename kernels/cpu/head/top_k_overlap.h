// Finds the tokens of the support that are also among the student's own k most probable: those with
// fewer than k tokens ahead of them. The logits come in blocks, so the largest ones outside of the
// support are kept until the last block has come.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace taopd::cpu {

// Keeps the `size` largest of a stream of logits; ties go to the lower id. The result does not
// depend on the order in which columns are offered. Any number of threads may call threshold and
// OfferColumn at the same time, each with its own scratch; all other calls must be alone.
class LargestLogits {
 public:
  struct Candidate {
    float logit;
    int32_t id;
  };

  // Forgets everything and keeps the `size` >= 0 largest logits from now on.
  void Reset(int32_t size);
  // Offering a number below this has no effect. -inf and NaN are never kept.
  float threshold() const { return threshold_.load(std::memory_order_relaxed); }
  // Memory that is reused from column to column.
  struct Scratch {
    std::vector<float> column;
    std::vector<Candidate> candidates;
  };
  // Offers `num` logits: the logit of id first_id + i is column[i * stride].
  void OfferColumn(const float* column, int64_t stride, int64_t num, int32_t first_id,
                   Scratch* scratch);
  // Returns the logits that were kept, at most `size` candidates, in descending order. Valid until
  // the next call.
  const std::vector<Candidate>& Sorted();

  // Returns how much memory an object with this `size` may take, in bytes.
  static int64_t Bytes(int32_t size);

 private:
  std::mutex mutex_;
  std::vector<Candidate> kept_;
  int32_t size_ = 0;
  std::atomic<float> threshold_{0};
};

// Writes to in_top_k[k] whether ids[j] is among the k largest of its row: 1 or 0; ties go to the
// lower id. support_logits[k] are the logits of the ids, and `rest` are the k largest of the row
// without the support. *order is overwritten.
void MarkStudentTopK(const int32_t* ids, const float* support_logits, int32_t k,
                     const std::vector<LargestLogits::Candidate>& rest, std::vector<int32_t>* order,
                     uint8_t* in_top_k);

}  // namespace taopd::cpu
