// Random numbers that do not depend on the order in which consumers request them: a counter-based
// generator (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A stream is named by a seed, a label and numbers, as in this example:
//   RandomStream(run_seed, "rollout", {step, prompt, sample})
// The n-th draw of a stream is a pure function of that name and n. A rollout's samples therefore do
// not depend on the batch that the rollout ran in, and a stream's only state is one counter.
//
// A RandomStream is not thread-safe: give each consumer its own. It is not for cryptography.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace taopd {

// Mixes a stream's name into 64 bits, which a caller can use as the seed of further streams.
uint64_t DeriveSeed(uint64_t seed, std::string_view label,
                    std::initializer_list<uint64_t> numbers = {});

// Returns 64 bits that cannot be predicted or repeated: each call takes them from the system's
// random generator (getrandom(2)). They serve as names and salts, and as seeds where no seed was
// given. Thread-safe.
uint64_t FreshBits();

// Computes one block of Philox4x32-10: the function from a counter and a key to four random words.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class RandomStream {
 public:
  // `position` is the number of 32-bit words of the stream to skip.
  explicit RandomStream(uint64_t seed, uint64_t position = 0) : seed_(seed), position_(position) {}
  RandomStream(uint64_t seed, std::string_view label, std::initializer_list<uint64_t> numbers = {})
      : seed_(DeriveSeed(seed, label, numbers)) {}

  uint32_t NextU32();
  uint64_t NextU64();
  // Returns a number that is uniform in the open interval (0, 1): (k + 0.5) * 2^-52 for an integer
  // k.
  double NextUniform();
  // Returns a number that is uniform in [0, bound), without bias. REQUIRES: bound > 0.
  uint64_t NextBelow(uint64_t bound);
  // Returns a standard normal number (Box-Muller; consumes two uniform numbers).
  double NextNormal();
  // Changes the state as num calls of NextNormal would.
  void SkipNormals(uint64_t num) { position_ += 4 * num; }

  // Shuffles the items in place (Fisher-Yates).
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[NextBelow(i)]);
  }

 private:
  uint64_t seed_;
  uint64_t position_ = 0;
};

}  // namespace taopd
