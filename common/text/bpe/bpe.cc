#include "common/text/bpe/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace taopd {
namespace {

// In words of at most this many symbols, a scan for the lowest rank is faster than a heap.
constexpr size_t kMaxShortWord = 48;
// The number of words whose places in the cache are being fetched from memory at a time.
constexpr size_t kNumAhead = 16;

}  // namespace

void Bpe::Encode(std::span<const std::string_view> words, WordCache* cache,
                 std::vector<int32_t>* ids) const {
  if (cache == nullptr) {
    for (const std::string_view word : words) EncodeNew(word, ids);
    return;
  }
  std::array<WordCache::Place, kNumAhead> places;
  for (; !words.empty(); words = words.subspan(std::min(words.size(), kNumAhead))) {
    const auto batch = words.first(std::min(words.size(), kNumAhead));
    for (size_t i = 0; i < batch.size(); ++i) places[i] = cache->Locate(batch[i]);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (const auto cached = cache->Find(batch[i], places[i]); !cached.empty()) {
        for (const int32_t id : cached) ids->push_back(id);
        continue;
      }
      const size_t begin = ids->size();
      EncodeNew(batch[i], ids);
      cache->Insert(batch[i], std::span(*ids).subspan(begin));
    }
  }
}

void Bpe::EncodeNew(std::string_view word, std::vector<int32_t>* ids) const {
  if (!whole_words_.empty()) {
    const auto found = whole_words_.find(absl::string_view(word.data(), word.size()));
    if (found != whole_words_.end()) return ids->push_back(found->second);
  }
  if (word.size() <= kMaxShortWord) {
    std::array<int32_t, kMaxShortWord> symbols;
    size_t num_symbols = 0;
    for (const char byte : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
      if (id >= 0) symbols[num_symbols++] = id;
    }
    return MergeShort(std::span(symbols).first(num_symbols), ids);
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  for (const char byte : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) symbols.push_back(id);
  }
  MergeLong(std::move(symbols), ids);
}

int64_t Bpe::CountDropped(std::string_view word) const {
  if (whole_words_.contains(absl::string_view(word.data(), word.size()))) return 0;
  return std::count_if(word.begin(), word.end(),
                       [this](char byte) { return byte_ids_[static_cast<uint8_t>(byte)] < 0; });
}

bool Bpe::drops_bytes() const {
  return std::any_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id < 0; });
}

void Bpe::MergeShort(std::span<int32_t> symbols, std::vector<int32_t>* ids) const {
  size_t num_symbols = symbols.size();
  std::array<uint32_t, kMaxShortWord> ranks;  // ranks[i] is that of symbols i and i + 1
  for (size_t i = 0; i + 1 < num_symbols; ++i) {
    ranks[i] = merges_.RankOf(symbols[i], symbols[i + 1]);
  }
  while (num_symbols > 1) {
    const auto lowest = std::min_element(ranks.begin(), ranks.begin() + num_symbols - 1);
    if (*lowest == MergeTable::kNoRank) break;
    const size_t at = lowest - ranks.begin();
    symbols[at] = merges_.MergedId(*lowest);
    std::copy(symbols.begin() + at + 2, symbols.begin() + num_symbols, symbols.begin() + at + 1);
    std::copy(ranks.begin() + at + 1, ranks.begin() + num_symbols - 1, ranks.begin() + at);
    --num_symbols;
    if (at > 0) ranks[at - 1] = merges_.RankOf(symbols[at - 1], symbols[at]);
    if (at + 1 < num_symbols) ranks[at] = merges_.RankOf(symbols[at], symbols[at + 1]);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.begin() + num_symbols);
}

void Bpe::MergeLong(std::vector<int32_t> symbols, std::vector<int32_t>* ids) const {
  // A linked list over the symbols, and a heap of candidate merges. A candidate is stale when its
  // left symbol is gone or there is a different pair by now.
  const auto num_symbols = static_cast<int32_t>(symbols.size());
  constexpr int32_t kGone = -1;
  std::vector<int32_t> previous(symbols.size()), next(symbols.size());
  struct Candidate {
    uint32_t rank;
    int32_t position, left_id, right_id;
    bool operator>(const Candidate& other) const {
      return std::tie(rank, position) > std::tie(other.rank, other.position);
    }
  };
  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(std::greater<>(),
                                                                              std::move(storage));
  auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right >= num_symbols) return;
    const uint32_t rank = merges_.RankOf(symbols[left], symbols[right]);
    if (rank != MergeTable::kNoRank) heap.push({rank, left, symbols[left], symbols[right]});
  };
  for (int32_t i = 0; i < num_symbols; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
    consider(i, i + 1);
  }
  while (!heap.empty()) {
    const Candidate candidate = heap.top();
    heap.pop();
    const int32_t left = candidate.position;
    if (symbols[left] != candidate.left_id) continue;
    const int32_t right = next[left];
    if (right >= num_symbols || symbols[right] != candidate.right_id) continue;
    symbols[left] = merges_.MergedId(candidate.rank);
    symbols[right] = kGone;
    next[left] = next[right];
    if (next[left] < num_symbols) previous[next[left]] = left;
    consider(previous[left], left);
    consider(left, next[left]);
  }
  std::erase(symbols, kGone);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

}  // namespace taopd
