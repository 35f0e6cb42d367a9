#include "common/base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cmath>

#include "common/base/check.h"

namespace taopd {
namespace {

// The finalizer of MurmurHash3: a bijection whose output bits all depend on all input bits.
uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

// Returns the next words of a stream. Words of one block share its computation.
template <size_t kNumWords>
std::array<uint32_t, kNumWords> NextWords(uint64_t seed, uint64_t* position) {
  std::array<uint32_t, kNumWords> words;
  std::array<uint32_t, 4> block;
  for (size_t i = 0; i < kNumWords; ++i, ++*position) {
    const uint64_t number = *position / 4;
    if (i == 0 || *position % 4 == 0) {
      block = Philox4x32({static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), 0, 0},
                         {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    }
    words[i] = block[*position % 4];
  }
  return words;
}

uint64_t Join(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }

double Uniform(uint64_t bits) {
  // 52 random bits plus a half step stay strictly inside (0, 1) in double.
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

}  // namespace

uint64_t DeriveSeed(uint64_t seed, std::string_view label,
                    std::initializer_list<uint64_t> numbers) {
  uint64_t hash = Mix(seed + 0x9e3779b97f4a7c15ULL);
  for (unsigned char c : label) hash = Mix(hash * 31 + c + 1);
  hash = Mix(hash ^ label.size());
  for (uint64_t number : numbers) hash = Mix(hash * 0x9e3779b97f4a7c15ULL + Mix(number + 1));
  return hash;
}

uint64_t FreshBits() {
  uint64_t bits = 0;
  // A signal can only interrupt the call while the machine boots.
  while (::getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) TAOPD_CHECK_EQ(errno, EINTR);
  return bits;
}

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint32_t RandomStream::NextU32() { return NextWords<1>(seed_, &position_)[0]; }

uint64_t RandomStream::NextU64() {
  const auto [high, low] = NextWords<2>(seed_, &position_);
  return Join(high, low);
}

double RandomStream::NextUniform() { return Uniform(NextU64()); }

uint64_t RandomStream::NextBelow(uint64_t bound) {
  TAOPD_CHECK_GT(bound, uint64_t{0});
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  uint64_t value = NextU64();
  while (value >= limit) value = NextU64();
  return value % bound;
}

double RandomStream::NextNormal() {
  const auto words = NextWords<4>(seed_, &position_);
  const double u = Uniform(Join(words[0], words[1])), v = Uniform(Join(words[2], words[3]));
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * 3.14159265358979323846 * v);
}

}  // namespace taopd
