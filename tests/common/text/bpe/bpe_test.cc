#include "common/text/bpe/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "common/base/random.h"
#include "common/text/bpe/word_cache.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// Bytes 'a' to 'd' are tokens 0 to 3; later tokens are merges of earlier ones.
struct RandomModel {
  std::vector<BpeMerge> merges;
  std::array<int32_t, 256> byte_ids;

  explicit RandomModel(RandomStream* random, int num_merges) {
    byte_ids.fill(-1);
    for (int i = 0; i < 4; ++i) byte_ids['a' + i] = i;
    std::vector<std::string> spellings = {"a", "b", "c", "d"};
    std::map<std::string, int32_t> ids = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}};
    for (int m = 0; m < num_merges; ++m) {
      const auto left = static_cast<int32_t>(random->NextBelow(spellings.size()));
      const auto right = static_cast<int32_t>(random->NextBelow(spellings.size()));
      const std::string merged = spellings[left] + spellings[right];
      const auto [entry, is_new] = ids.try_emplace(merged, static_cast<int32_t>(spellings.size()));
      if (is_new) spellings.push_back(merged);
      merges.push_back({left, right, entry->second});
    }
  }

  // Encodes by the definition, one merge per round.
  std::vector<int32_t> PlainEncode(const std::string& word) const {
    std::map<std::pair<int32_t, int32_t>, std::pair<int, int32_t>> ranks;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      ranks[{merges[rank].left_id, merges[rank].right_id}] = {rank, merges[rank].merged_id};
    }
    std::vector<int32_t> symbols;
    for (const char c : word) {
      if (byte_ids[static_cast<uint8_t>(c)] >= 0) {
        symbols.push_back(byte_ids[static_cast<uint8_t>(c)]);
      }
    }
    for (;;) {
      std::pair<int, int32_t> best = {INT32_MAX, -1};
      size_t best_at = 0;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto found = ranks.find({symbols[i], symbols[i + 1]});
        if (found != ranks.end() && found->second.first < best.first) {
          best = found->second;
          best_at = i;
        }
      }
      if (best.second < 0) return symbols;
      symbols[best_at] = best.second;
      symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best_at) + 1);
    }
  }
};

std::vector<int32_t> Encode(const Bpe& bpe, const std::string& word, WordCache* cache = nullptr) {
  std::vector<int32_t> ids;
  bpe.Encode(std::array{std::string_view(word)}, cache, &ids);
  return ids;
}

// All lengths around the switch from scan to heap, twice (the second result comes from the cache).
TEST(Bpe, AgreesWithTheDefinition) {
  RandomStream random(21);
  for (int trial = 0; trial < 25; ++trial) {
    const RandomModel model(&random, 3 + static_cast<int>(random.NextBelow(60)));
    const Bpe bpe(model.merges, model.byte_ids, {});
    WordCache cache;
    for (size_t length = 0; length <= 130; ++length) {
      const uint64_t num_letters = 1 + random.NextBelow(5);  // the fifth letter, 'e', has no token
      std::string word(length, 'a');
      for (char& c : word) c = static_cast<char>('a' + random.NextBelow(num_letters));
      const std::vector<int32_t> expected = model.PlainEncode(word);
      ASSERT_EQ(Encode(bpe, word, &cache), expected) << word;
      ASSERT_EQ(Encode(bpe, word, &cache), expected) << word;
    }
  }
}

// More words than are looked up at a time, known and new, with and without a cache.
TEST(Bpe, ManyWordsAreTheirIdsInOrder) {
  RandomStream random(22);
  const RandomModel model(&random, 40);
  const Bpe bpe(model.merges, model.byte_ids, {});
  WordCache cache;
  std::vector<std::string> texts(200);
  std::vector<std::string_view> words;
  std::vector<int32_t> expected;
  for (std::string& text : texts) {
    text.resize(random.NextBelow(20));
    for (char& c : text) c = static_cast<char>('a' + random.NextBelow(4));
    words.push_back(text);
    words.push_back(texts[random.NextBelow(words.size()) / 2]);
  }
  for (size_t num_words = 0; num_words <= words.size(); num_words += 7) {
    expected.clear();
    for (const std::string_view word : std::span(words).first(num_words)) {
      const std::vector<int32_t> ids = model.PlainEncode(std::string(word));
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    for (WordCache* const each : {&cache, static_cast<WordCache*>(nullptr)}) {
      std::vector<int32_t> ids;
      bpe.Encode(std::span(words).first(num_words), each, &ids);
      ASSERT_EQ(ids, expected) << num_words;
    }
  }
}

TEST(Bpe, WholeWordsComeFirst) {
  RandomStream random(1);
  const RandomModel model(&random, 10);
  const Bpe bpe(model.merges, model.byte_ids, {{"abc", 77}});
  EXPECT_EQ(Encode(bpe, "abc"), std::vector<int32_t>{77});
  EXPECT_EQ(Encode(bpe, "abca"), model.PlainEncode("abca"));
}

TEST(Bpe, OneMebibyteOfOneLetterIsFast) {
  std::vector<BpeMerge> merges;  // aa, aaaa, aaaaaaaa, ...
  for (int32_t i = 0; i < 8; ++i) merges.push_back({i, i, i + 1});
  std::array<int32_t, 256> byte_ids;
  byte_ids.fill(0);
  const Bpe bpe(merges, byte_ids, {});
  // A quadratic loop takes over an hour, which the program's time limit does not allow.
  EXPECT_EQ(Encode(bpe, std::string(1 << 20, 'a')), std::vector<int32_t>(1 << 12, 8));
}

TEST(WordCache, StaysBoundedAndCorrect) {
  WordCache cache;
  constexpr int32_t kNumWords = 200'000;
  for (int32_t i = 0; i < kNumWords; ++i) {
    cache.Insert(std::to_string(i), std::vector<int32_t>{i});
    cache.Insert(std::to_string(i) + " and fifteen bytes", std::vector<int32_t>{i, -i});
  }
  int num_found = 0;
  for (int32_t i = 0; i < kNumWords; ++i) {
    if (const auto ids = cache.Find(std::to_string(i)); !ids.empty()) {
      ++num_found;
      ASSERT_THAT(ids, ElementsAre(i));
    }
    if (const auto ids = cache.Find(std::to_string(i) + " and fifteen bytes"); !ids.empty()) {
      ++num_found;
      ASSERT_THAT(ids, ElementsAre(i, -i));
    }
  }
  // All places are taken by now.
  EXPECT_GT(num_found, static_cast<int>(WordCache::kNumEntries) * 9 / 10);
  EXPECT_LE(num_found, static_cast<int>(WordCache::kNumEntries));
}

// Every size of word and of result; words that differ in one byte, in a zero at the end, or in
// size.
TEST(WordCache, TellsWordsApart) {
  for (size_t size = 1; size <= WordCache::kMaxWordBytes; ++size) {
    for (size_t num_ids = 1; num_ids <= WordCache::kMaxIds; ++num_ids) {
      WordCache cache;
      std::string word(size, '\0');
      for (size_t i = 0; i < size; ++i) word[i] = static_cast<char>('a' + i);
      std::vector<int32_t> ids(num_ids);
      for (size_t i = 0; i < num_ids; ++i) ids[i] = static_cast<int32_t>(1000 + i);
      cache.Insert(word, ids);
      ASSERT_THAT(cache.Find(word), ElementsAreArray(ids)) << size;
      for (size_t i = 0; i < size; ++i) {
        std::string other = word;
        other[i] ^= 1;
        ASSERT_TRUE(cache.Find(other).empty()) << size << " bytes, byte " << i;
      }
      ASSERT_TRUE(cache.Find(word + '\0').empty());
      ASSERT_TRUE(cache.Find(word.substr(0, size - 1)).empty());
    }
  }
}

// There are so many that words with the same beginning, and with the same end, share places.
TEST(WordCache, TellsWordsOfOnePlaceApart) {
  WordCache cache;
  for (const bool at_end : {true, false}) {
    const auto word = [&](int32_t i) {
      const std::string number = std::to_string(100'000 + i);
      return at_end ? "abcdefgh" + number : number + "abcdefgh";
    };
    for (int32_t i = 0; i < 100'000; ++i) cache.Insert(word(i), std::vector<int32_t>{i});
    for (int32_t i = 0; i < 100'000; ++i) {
      const auto ids = cache.Find(word(i));
      ASSERT_TRUE(ids.empty() || (ids.size() == 1 && ids[0] == i)) << word(i);
    }
  }
}

TEST(WordCache, TheNewerOfTwoResultsStays) {
  WordCache cache;
  cache.Insert("word", std::vector<int32_t>{1});
  cache.Insert("word", std::vector<int32_t>{2, 3});
  EXPECT_THAT(cache.Find("word"), ElementsAre(2, 3));
}

TEST(WordCache, WhatHasNoRoomIsNotKept) {
  WordCache cache;
  const std::string too_long(WordCache::kMaxWordBytes + 1, 'a');
  cache.Insert(too_long, std::vector<int32_t>{1});
  cache.Insert("b", std::vector<int32_t>(WordCache::kMaxIds + 1, 1));
  cache.Insert("c", {});
  cache.Insert("", std::vector<int32_t>{1});
  for (const std::string& word : {too_long, std::string("b"), std::string("c"), std::string()}) {
    EXPECT_TRUE(cache.Find(word).empty()) << word;
  }
}

}  // namespace
}  // namespace taopd::testing
