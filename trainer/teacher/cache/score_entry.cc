#include "trainer/teacher/cache/score_entry.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/io/sha256.h"

namespace taopd {
namespace {

static_assert(std::endian::native == std::endian::little, "the arrays are stored as they are");

constexpr uint32_t kMagic = 0x31435354;  // "TSC1"
constexpr size_t kKeyDigits = 64;
constexpr uint8_t kNotAmongIds = 255;
constexpr uint32_t kHasTail = 1, kHasEntropy = 2;
constexpr size_t kWordBytes = 8;

struct Header {
  uint32_t magic = kMagic;
  uint32_t flags = 0;
  uint32_t num_rows = 0;
  uint32_t top_k = 0;
  uint32_t num_candidates = 0;
  uint32_t vocab_size = 0;  // of dense log-probs; 0 if there are none
  uint32_t id_bits = 0;
  uint32_t num_outside = 0;  // sampled tokens that are not among the ids
  char key[kKeyDigits] = {};
};
static_assert(sizeof(Header) % kWordBytes == 0);

size_t PaddedBytes(size_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes * kWordBytes; }

uint64_t LoadWord(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Each step is a bijection of the sum for a given word, and of the word for a given sum.
uint64_t Mix(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x9E3779B97F4A7C15ull;
  return sum ^ (sum >> 29);
}

// Uses four lanes, because the steps within a lane depend on each other. REQUIRES: `bytes` are
// whole words.
uint64_t Checksum(std::span<const std::byte> bytes) {
  std::array<uint64_t, 4> lanes = {1, 2, 3, 4};
  size_t at = 0;
  for (; at + 4 * kWordBytes <= bytes.size(); at += 4 * kWordBytes) {
    for (size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = Mix(lanes[lane], LoadWord(bytes.data() + at + lane * kWordBytes));
    }
  }
  for (; at < bytes.size(); at += kWordBytes) {
    lanes[0] = Mix(lanes[0], LoadWord(bytes.data() + at));
  }
  uint64_t sum = bytes.size();
  for (const uint64_t lane : lanes) sum = Mix(sum, lane);
  return sum;
}

template <typename T>
void AppendArray(const T* values, size_t count, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(values), count * sizeof(T));
  bytes->resize(PaddedBytes(bytes->size()));
}

void AppendPacked(const std::vector<int32_t>& ids, uint32_t num_bits, std::string* bytes) {
  uint64_t word = 0;
  uint32_t filled = 0;
  const auto flush = [&] { bytes->append(reinterpret_cast<const char*>(&word), sizeof(word)); };
  for (const int32_t id : ids) {
    const uint64_t value = static_cast<uint32_t>(id);
    word |= value << filled;
    filled += num_bits;
    if (filled < 64) continue;
    flush();
    filled -= 64;
    word = filled > 0 ? value >> (num_bits - filled) : 0;
  }
  if (filled > 0) flush();
}

size_t PackedBytes(size_t count, uint32_t num_bits) {
  return PaddedBytes((count * num_bits + 7) / 8);
}

// REQUIRES: a word can be read after the last value, where the checksum is.
void Unpack(const std::byte* from, uint32_t num_bits, std::vector<int32_t>* ids) {
  const uint64_t mask = (uint64_t{1} << num_bits) - 1;
  size_t bit = 0;
  for (int32_t& id : *ids) {
    id = static_cast<int32_t>((LoadWord(from + bit / 8) >> (bit % 8)) & mask);
    bit += num_bits;
  }
}

// The offsets of the arrays of an entry.
struct Layout {
  size_t log_probs, ids, log_tail, columns, outside, candidate_log_probs, candidate_log_tail,
      entropy, dense, checksum;
};

Layout LayoutOf(const Header& header) {
  const size_t rows = header.num_rows, k = header.top_k, m = header.num_candidates;
  const bool has_tail = (header.flags & kHasTail) != 0;
  const bool has_entropy = (header.flags & kHasEntropy) != 0;
  Layout at{};
  size_t end = sizeof(Header);
  const auto place = [&](size_t* begin, size_t bytes) {
    *begin = end;
    end += PaddedBytes(bytes);
  };
  place(&at.log_probs, rows * k * sizeof(float));
  place(&at.ids, PackedBytes(rows * k, header.id_bits));
  place(&at.log_tail, has_tail ? rows * sizeof(float) : 0);
  place(&at.columns, rows);
  place(&at.outside, header.num_outside * sizeof(float));
  place(&at.candidate_log_probs, rows * m * sizeof(float));
  place(&at.candidate_log_tail, m > 0 ? rows * sizeof(float) : 0);
  place(&at.entropy, has_entropy ? rows * sizeof(float) : 0);
  place(&at.dense, rows * header.vocab_size * sizeof(float));
  at.checksum = end;
  return at;
}

template <typename T>
std::string_view BytesOf(const T* values, size_t count) {
  return {reinterpret_cast<const char*>(values), count * sizeof(T)};
}

void CopyFloats(std::span<const std::byte> bytes, size_t at, size_t count,
                std::vector<float>* out) {
  out->resize(count);
  if (count > 0) std::memcpy(out->data(), bytes.data() + at, count * sizeof(float));
}

// Checks the header against the request and the number of bytes.
absl::StatusOr<Header> ReadHeader(std::span<const std::byte> bytes, const std::string& key,
                                  const TeacherRequest& request) {
  if (bytes.size() < sizeof(Header) + sizeof(uint64_t) || bytes.size() % kWordBytes != 0) {
    return DataLoss("a cache entry of ", bytes.size(), " bytes is incomplete");
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return DataLoss("not a cache entry");
  if (std::string_view(header.key, kKeyDigits) != key) return DataLoss("the entry of another key");
  const auto num_rows = static_cast<size_t>(request.num_rows());
  const bool fits = header.num_rows == num_rows &&
                    header.top_k == static_cast<uint32_t>(request.top_k) &&
                    header.num_candidates == static_cast<uint32_t>(request.num_candidates) &&
                    ((header.flags & kHasEntropy) != 0) == request.entropy &&
                    (header.vocab_size > 0) == request.dense && header.num_outside <= num_rows &&
                    header.id_bits >= 1 && header.id_bits <= 31;
  if (!fits) return DataLoss("a cache entry has another shape");
  if (LayoutOf(header).checksum + sizeof(uint64_t) != bytes.size()) {
    return DataLoss("a cache entry of ", bytes.size(), " bytes instead of ",
                    LayoutOf(header).checksum + sizeof(uint64_t));
  }
  return header;
}

}  // namespace

std::string ScoreKey(const TeacherRequest& request, const std::string& identity) {
  const std::array<int64_t, 7> numbers = {request.score_start,
                                          request.top_k,
                                          std::bit_cast<int32_t>(request.temperature),
                                          request.entropy ? 1 : 0,
                                          request.dense ? 1 : 0,
                                          request.num_candidates,
                                          static_cast<int64_t>(request.token_ids.size())};
  Sha256 hash;
  hash.Update(Concat("taopd scores 1 ", identity.size(), " "));
  hash.Update(identity);
  hash.Update(BytesOf(numbers.data(), numbers.size()));
  hash.Update(BytesOf(request.token_ids.data(), request.token_ids.size()));
  hash.Update(BytesOf(request.candidate_ids.data(), request.candidate_ids.size()));
  return hash.HexDigest();
}

std::string MakeScoreEntry(const std::string& key, const TeacherScores& scores) {
  const size_t rows = scores.sampled_log_probs.size();
  const auto k = static_cast<size_t>(scores.top_k);
  std::vector<uint8_t> columns(rows, kNotAmongIds);
  std::vector<float> outside;
  for (size_t r = 0; r < rows; ++r) {
    const auto sampled = std::bit_cast<uint32_t>(scores.sampled_log_probs[r]);
    const size_t num_columns = std::min<size_t>(k, kNotAmongIds);
    for (size_t j = 0; j < num_columns && columns[r] == kNotAmongIds; ++j) {
      if (std::bit_cast<uint32_t>(scores.log_probs[r * k + j]) == sampled) {
        columns[r] = static_cast<uint8_t>(j);
      }
    }
    if (columns[r] == kNotAmongIds) outside.push_back(scores.sampled_log_probs[r]);
  }
  Header header;
  std::memcpy(header.key, key.data(), std::min(key.size(), kKeyDigits));
  header.num_rows = static_cast<uint32_t>(rows);
  header.top_k = static_cast<uint32_t>(k);
  header.num_outside = static_cast<uint32_t>(outside.size());
  if (rows > 0) {
    header.num_candidates = static_cast<uint32_t>(scores.candidate_log_probs.size() / rows);
    header.vocab_size = static_cast<uint32_t>(scores.dense_log_probs.size() / rows);
  }
  // Every NaN is kept except the one that means "none".
  constexpr auto kNone = std::bit_cast<uint32_t>(std::numeric_limits<float>::quiet_NaN());
  const bool has_tail = !std::ranges::all_of(
      scores.log_tail, [](float value) { return std::bit_cast<uint32_t>(value) == kNone; });
  if (has_tail) header.flags |= kHasTail;
  if (!scores.entropy.empty()) header.flags |= kHasEntropy;
  uint32_t largest = 1;
  for (const int32_t id : scores.ids) largest |= static_cast<uint32_t>(id);
  header.id_bits = static_cast<uint32_t>(std::bit_width(largest));

  std::string entry;
  entry.reserve(LayoutOf(header).checksum + sizeof(uint64_t));
  AppendArray(&header, 1, &entry);
  AppendArray(scores.log_probs.data(), scores.log_probs.size(), &entry);
  AppendPacked(scores.ids, header.id_bits, &entry);
  if (has_tail) AppendArray(scores.log_tail.data(), rows, &entry);
  AppendArray(columns.data(), rows, &entry);
  AppendArray(outside.data(), outside.size(), &entry);
  AppendArray(scores.candidate_log_probs.data(), scores.candidate_log_probs.size(), &entry);
  AppendArray(scores.candidate_log_tail.data(), scores.candidate_log_tail.size(), &entry);
  AppendArray(scores.entropy.data(), scores.entropy.size(), &entry);
  AppendArray(scores.dense_log_probs.data(), scores.dense_log_probs.size(), &entry);
  const uint64_t checksum = Checksum(std::as_bytes(std::span(entry)));
  AppendArray(&checksum, 1, &entry);
  return entry;
}

absl::StatusOr<TeacherScores> ParseScoreEntry(std::span<const std::byte> bytes,
                                              const std::string& key,
                                              const TeacherRequest& request) {
  TAOPD_ASSIGN_OR_RETURN(const Header header, ReadHeader(bytes, key, request));
  const Layout at = LayoutOf(header);
  if (Checksum(bytes.first(at.checksum)) != LoadWord(bytes.data() + at.checksum)) {
    return DataLoss("the checksum of a cache entry is wrong");
  }
  const size_t rows = header.num_rows, k = header.top_k, m = header.num_candidates;
  TeacherScores scores;
  scores.top_k = static_cast<int32_t>(k);
  CopyFloats(bytes, at.log_probs, rows * k, &scores.log_probs);
  scores.ids.resize(rows * k);
  Unpack(bytes.data() + at.ids, header.id_bits, &scores.ids);
  if ((header.flags & kHasTail) != 0) {
    CopyFloats(bytes, at.log_tail, rows, &scores.log_tail);
  } else {
    scores.log_tail.assign(rows, std::numeric_limits<float>::quiet_NaN());
  }
  std::vector<float> outside;
  CopyFloats(bytes, at.outside, header.num_outside, &outside);
  scores.sampled_log_probs.resize(rows);
  size_t next = 0;
  for (size_t r = 0; r < rows; ++r) {
    const auto column = static_cast<uint8_t>(bytes[at.columns + r]);
    if (column != kNotAmongIds && column < k) {
      scores.sampled_log_probs[r] = scores.log_probs[r * k + column];
    } else if (next < outside.size()) {
      scores.sampled_log_probs[r] = outside[next++];
    } else {
      return DataLoss("a cache entry lacks the sampled log-prob of row ", r);
    }
  }
  CopyFloats(bytes, at.candidate_log_probs, rows * m, &scores.candidate_log_probs);
  CopyFloats(bytes, at.candidate_log_tail, m > 0 ? rows : 0, &scores.candidate_log_tail);
  CopyFloats(bytes, at.entropy, (header.flags & kHasEntropy) != 0 ? rows : 0, &scores.entropy);
  CopyFloats(bytes, at.dense, rows * header.vocab_size, &scores.dense_log_probs);
  return scores;
}

}  // namespace taopd
