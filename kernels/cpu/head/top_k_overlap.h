// Which tokens of the support are also among the student's own k most probable: those with fewer
// than k tokens ahead of them. Logits come in blocks, so the largest of the others are kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace taopd::cpu {

// The `size` largest of a stream of logits, ties by lowest id. Any number of threads may offer;
// what is kept does not depend on the order.
class LargestLogits {
 public:
  struct Candidate {
    float logit;
    int32_t id;
  };

  // Forgets all. size >= 0.
  void Reset(int32_t size);
  // Numbers below this are not kept (nor are -inf and NaN).
  float threshold() const { return threshold_.load(std::memory_order_relaxed); }
  void Offer(float logit, int32_t id);
  // At most `size` of them, largest first; no other thread may offer any more.
  const std::vector<Candidate>& Sorted();

  // Bytes that the largest row of a `size` holds.
  static int64_t Bytes(int32_t size);

 private:
  void Trim();

  std::mutex mutex_;
  std::vector<Candidate> kept_;
  int32_t size_ = 0;
  std::atomic<float> threshold_{0};
};

// in_top_k[j] = 1 when ids[j] is among the k largest of the row, ties by lowest id, 0 otherwise.
// taken[k] are the support's logits, rest the k largest of the row without the support. `order` is
// scratch.
void MarkStudentTopK(const int32_t* ids, const float* taken, int32_t k,
                     const std::vector<LargestLogits::Candidate>& rest, std::vector<int32_t>* order,
                     uint8_t* in_top_k);

}  // namespace taopd::cpu
