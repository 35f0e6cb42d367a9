// Random numbers that do not depend on who asks when: a counter-based generator (Philox4x32-10,
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A stream is named by a
// seed, a label and numbers, e.g. RandomStream(run_seed, "rollout", {step, prompt, sample}); the
// n-th draw of a stream is a pure function of that name and n. So a rollout's samples do not depend
// on the batch it ran in, and a stream's whole state is one counter.
//
// Not thread-safe; make one stream per consumer. Not for cryptography.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace taopd {

// Mixes a name into 64 bits; used as a seed for what is below the caller.
uint64_t DeriveSeed(uint64_t seed, std::string_view label,
                    std::initializer_list<uint64_t> numbers = {});

// One Philox4x32-10 block.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class RandomStream {
 public:
  explicit RandomStream(uint64_t seed, uint64_t position = 0) : seed_(seed), position_(position) {}
  RandomStream(uint64_t seed, std::string_view label, std::initializer_list<uint64_t> numbers = {})
      : seed_(DeriveSeed(seed, label, numbers)) {}

  uint32_t NextU32();
  uint64_t NextU64();
  // In the open interval (0, 1): multiples of 2^-52, offset by half a step; never 0 or 1.
  double NextUniform();
  // Unbiased in [0, bound). REQUIRES: bound > 0.
  uint64_t NextBelow(uint64_t bound);
  // Standard normal (Box-Muller; two uniforms a draw).
  double NextNormal();

  // Fisher-Yates, in place.
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[NextBelow(i)]);
  }

  // Draws so far, in 32-bit words: the whole state beside the seed. Saved with a checkpoint.
  uint64_t position() const { return position_; }
  uint64_t seed() const { return seed_; }

 private:
  uint64_t seed_;
  uint64_t position_ = 0;
};

}  // namespace taopd
