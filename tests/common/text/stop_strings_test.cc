#include "common/text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>

#include "common/base/random.h"
#include "common/text/unicode/unicode.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Strings = std::vector<std::string>;

TEST(StopStrings, AcrossPieces) {
  StopStringMatcher matcher({"</answer>", "\n\n"}, /*include_in_output=*/false);
  EXPECT_FALSE(matcher.Append("42 </an"));
  EXPECT_EQ(matcher.num_streamable(), 3u);  // "</an" may be the beginning
  EXPECT_FALSE(matcher.Append("t "));
  EXPECT_EQ(matcher.num_streamable(), 9u);
  EXPECT_FALSE(matcher.Append("\n"));
  EXPECT_EQ(matcher.num_streamable(), 9u);
  EXPECT_TRUE(matcher.Append("\nmore"));
  EXPECT_EQ(matcher.text(), "42 </ant ");
  EXPECT_EQ(matcher.num_streamable(), 9u);
  EXPECT_EQ(matcher.matched(), 1u);
}

TEST(StopStrings, IncludedInTheOutput) {
  StopStringMatcher matcher({"END"}, /*include_in_output=*/true);
  EXPECT_FALSE(matcher.Append("aE"));
  EXPECT_TRUE(matcher.Append("NDb"));
  EXPECT_EQ(matcher.text(), "aEND");
  EXPECT_EQ(matcher.num_streamable(), 4u);
}

TEST(StopStrings, FirstEndWinsThenFirstOfTheList) {
  struct Case {
    Strings stops;
    const char *text, *left;
  };
  for (const Case& c : {Case{{"bcd", "c"}, "abcd", "ab"}, Case{{"c", "bcd"}, "abcd", "ab"},
                        Case{{"bc", "c"}, "abc", "a"}, Case{{"c", "bc"}, "abc", "ab"}}) {
    StopStringMatcher matcher(c.stops, false);
    EXPECT_TRUE(matcher.Append(c.text));
    EXPECT_EQ(matcher.text(), c.left);
  }
}

TEST(StopStrings, WhatEndsBeforeItMayStopDoesNotCount) {
  StopStringMatcher matcher({"ab"}, false);
  EXPECT_FALSE(matcher.Append("ab a", /*may_stop=*/false));
  EXPECT_TRUE(matcher.Append("b"));
  EXPECT_EQ(matcher.text(), "ab ");
}

TEST(StopStrings, StreamsWholeCharacters) {
  const std::string euro = "\xe2\x82\xac";
  StopStringMatcher matcher({"zz"}, false);
  EXPECT_FALSE(matcher.Append("a" + euro.substr(0, 1)));
  EXPECT_EQ(matcher.num_streamable(), 1u);
  EXPECT_FALSE(matcher.Append(euro.substr(1, 1)));
  EXPECT_EQ(matcher.num_streamable(), 1u);
  EXPECT_FALSE(matcher.Append(euro.substr(2)));
  EXPECT_EQ(matcher.num_streamable(), 4u);
}

TEST(StopStrings, Validation) {
  EXPECT_OK(ValidateStopStrings({}));
  EXPECT_OK(ValidateStopStrings({std::string(kMaxStopStringBytes, 'x')}));
  const auto invalid = kInvalidArgument;
  EXPECT_ERROR(ValidateStopStrings({"a", ""}), invalid, "stop[1] is empty");
  EXPECT_ERROR(ValidateStopStrings({"\xff"}), invalid, "stop[0] is not UTF-8");
  EXPECT_ERROR(ValidateStopStrings({std::string(kMaxStopStringBytes + 1, 'x')}), invalid,
               "stop[0] has 1025 bytes: at most 1024");
  EXPECT_ERROR(ValidateStopStrings(Strings(kMaxStopStrings + 1, "a")), invalid,
               "stop has 65 strings: at most 64");
}

// Random texts of few letters, so that near misses are frequent, in random pieces of bytes. The
// expected text comes from std::string::find on the whole text.
TEST(StopStrings, EqualTheSearchOfTheWholeText) {
  RandomStream random(31, "stop strings");
  const Strings letters = {"a", "b", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
  const auto random_text = [&](uint64_t num) {
    std::string text;
    for (uint64_t i = 0; i < num; ++i) text += letters[random.NextBelow(letters.size())];
    return text;
  };
  int num_stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    Strings stops;
    for (uint64_t i = random.NextBelow(4); i > 0; --i)
      stops.push_back(random_text(1 + random.NextBelow(5)));
    const std::string text = random_text(random.NextBelow(20));
    const bool include = random.NextBelow(2) == 0;
    size_t end = std::string::npos, cut = text.size();
    for (const std::string& stop : stops) {
      const size_t begin = text.find(stop);
      if (begin == std::string::npos || begin + stop.size() >= end) continue;
      end = begin + stop.size();
      cut = include ? end : begin;
    }

    StopStringMatcher matcher(stops, include);
    bool stopped = false;
    size_t sent = 0;
    for (size_t at = 0; at < text.size() && !stopped;) {
      const size_t num = std::min<size_t>(1 + random.NextBelow(6), text.size() - at);
      stopped = matcher.Append(std::string_view(text).substr(at, num));
      at += num;
      ASSERT_GE(matcher.num_streamable(), sent);
      sent = matcher.num_streamable();
      ASSERT_LE(sent, cut) << "sent what is cut away";
      ASSERT_TRUE(IsValidUtf8(matcher.text().substr(0, sent)));
    }
    ASSERT_EQ(stopped, end != std::string::npos);
    ASSERT_EQ(matcher.text(), text.substr(0, cut));
    num_stopped += stopped;
  }
  EXPECT_GT(num_stopped, 4000);
}

// Without this test, a matcher that sends nothing before the end would pass.
TEST(StopStrings, HoldsBackNoMoreThanABeginning) {
  StopStringMatcher matcher({"abab"}, false);
  EXPECT_FALSE(matcher.Append("xaba"));
  EXPECT_EQ(matcher.num_streamable(), 1u);
  EXPECT_FALSE(matcher.Append("a"));
  EXPECT_EQ(matcher.num_streamable(), 4u);
  EXPECT_FALSE(matcher.Append("c"));
  EXPECT_EQ(matcher.num_streamable(), 6u);
}

// Returns the processor time that the function takes.
std::clock_t TimeOf(const std::function<void()>& function) {
  const std::clock_t begun_at = std::clock();
  function();
  return std::clock() - begun_at;
}

// 64 strings of which each begins like the text for long and never is it. A search for the
// beginnings from the longest on, after each piece, takes many times as long.
TEST(StopStrings, HostileStringsCostNoMoreThanOthers) {
  std::vector<std::string> stops;
  for (char c = '0'; c < '0' + 64; ++c)
    stops.push_back(std::string(512, 'a') + std::string(511, c == 'a' ? '!' : c));
  const auto match = [&] {
    StopStringMatcher matcher(stops, false);
    for (int i = 0; i < 1200; ++i) EXPECT_FALSE(matcher.Append("a"));
    EXPECT_EQ(matcher.num_streamable(), 1200u - 512u);
  };
  const auto search = [&] {
    std::string text;
    size_t longest = 0;
    for (int i = 0; i < 1200; ++i) {
      text += 'a';
      for (const std::string_view stop : stops) {
        size_t num = std::min(text.size(), stop.size() - 1);
        while (num > 0 && !text.ends_with(stop.substr(0, num))) --num;
        longest = std::max(longest, num);
      }
    }
    EXPECT_EQ(longest, 512u);
  };
  // The fastest of three, so that nothing that happens once makes the matcher look slow.
  EXPECT_LT(std::min({TimeOf(match), TimeOf(match), TimeOf(match)}), TimeOf(search) / 2);
}

}  // namespace
}  // namespace taopd::testing
