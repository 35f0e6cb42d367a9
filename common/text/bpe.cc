#include "common/text/bpe.h"

#include <algorithm>
#include <queue>
#include <span>
#include <tuple>

namespace taopd {
namespace {

// Up to here a scan for the lowest rank beats a heap.
constexpr size_t kMaxShortWord = 48;

uint64_t PairKey(int32_t left_id, int32_t right_id) {
  return (static_cast<uint64_t>(left_id) << 32) | static_cast<uint32_t>(right_id);
}

}  // namespace

Bpe::Bpe(const std::vector<BpeMerge>& merges, const std::array<int32_t, 256>& byte_ids,
         absl::flat_hash_map<std::string, int32_t> whole_words)
    : byte_ids_(byte_ids), whole_words_(std::move(whole_words)) {
  merges_.reserve(merges.size());
  int32_t rank = 0;
  for (const BpeMerge& merge : merges) {
    merges_[PairKey(merge.left_id, merge.right_id)] = {rank++, merge.merged_id};
  }
}

Bpe::RankedMerge Bpe::Find(int32_t left_id, int32_t right_id) const {
  const auto found = merges_.find(PairKey(left_id, right_id));
  return found == merges_.end() ? RankedMerge{kNoRank, -1} : found->second;
}

void Bpe::Encode(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const {
  if (cache != nullptr && cache->Find(word, ids)) return;
  const size_t begin = ids->size();
  if (!whole_words_.empty()) {
    const auto found = whole_words_.find(absl::string_view(word.data(), word.size()));
    if (found != whole_words_.end()) ids->push_back(found->second);
  }
  if (ids->size() == begin) {
    std::vector<int32_t> symbols;
    symbols.reserve(word.size());
    for (const char byte : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
      if (id >= 0) symbols.push_back(id);
    }
    symbols = symbols.size() <= kMaxShortWord ? MergeShort(std::move(symbols))
                                              : MergeLong(std::move(symbols));
    ids->insert(ids->end(), symbols.begin(), symbols.end());
  }
  if (cache != nullptr) cache->Insert(word, std::span(*ids).subspan(begin));
}

std::vector<int32_t> Bpe::MergeShort(std::vector<int32_t> symbols) const {
  if (symbols.size() < 2) return symbols;
  std::array<RankedMerge, kMaxShortWord> pairs;  // pairs[i]: symbols i and i + 1
  size_t num_pairs = symbols.size() - 1;
  for (size_t i = 0; i < num_pairs; ++i) pairs[i] = Find(symbols[i], symbols[i + 1]);
  while (num_pairs > 0) {
    size_t best = 0;
    for (size_t i = 1; i < num_pairs; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].merged_id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    std::copy(pairs.begin() + best + 1, pairs.begin() + num_pairs, pairs.begin() + best);
    --num_pairs;
    if (best > 0) pairs[best - 1] = Find(symbols[best - 1], symbols[best]);
    if (best < num_pairs) pairs[best] = Find(symbols[best], symbols[best + 1]);
  }
  return symbols;
}

std::vector<int32_t> Bpe::MergeLong(std::vector<int32_t> symbols) const {
  // A linked list over the symbols, and a heap of candidate merges. A candidate is stale when its
  // left symbol is gone or the pair there is another one by now.
  const auto num_symbols = static_cast<int32_t>(symbols.size());
  constexpr int32_t kGone = -1;
  std::vector<int32_t> previous(symbols.size()), next(symbols.size());
  struct Candidate {
    int32_t rank, position, left_id, right_id, merged_id;
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
    const RankedMerge merge = Find(symbols[left], symbols[right]);
    if (merge.rank != kNoRank) {
      heap.push({merge.rank, left, symbols[left], symbols[right], merge.merged_id});
    }
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
    symbols[left] = candidate.merged_id;
    symbols[right] = kGone;
    next[left] = next[right];
    if (next[left] < num_symbols) previous[next[left]] = left;
    consider(previous[left], left);
    consider(left, next[left]);
  }
  std::erase(symbols, kGone);
  return symbols;
}

}  // namespace taopd
