#include "common/text/unicode/unicode.h"

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/text/bpe/byte_level.h"

namespace taopd::testing {
namespace {

// Table 3-8 of the Unicode standard (U+FFFD for each maximal part), and the usual edge cases.
TEST(Unicode, RepairsUtf8ByMaximalParts) {
  const std::string r = "\xEF\xBF\xBD", rrrr = r + r + r + r;
  EXPECT_EQ(RepairUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), Concat(rrrr, rrrr, "A"));
  EXPECT_EQ(RepairUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), Concat(rrrr, rrrr, "A"));
  EXPECT_EQ(RepairUtf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), Concat(rrrr, r, "A", r, r, "B"));
  EXPECT_EQ(RepairUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), Concat(rrrr, "A"));
  EXPECT_EQ(RepairUtf8("caf\xC3"), "caf" + r);
  EXPECT_EQ(RepairUtf8("a\xF0\x9F\x98\x80z"), "a\xF0\x9F\x98\x80z");
  EXPECT_EQ(RepairUtf8(""), "");
}

TEST(Unicode, ValidityAgreesWithRepair) {
  RandomStream random(5);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string text(random.NextBelow(14), 'a');
    for (char& c : text) {
      if (random.NextBelow(3) == 0) c = static_cast<char>(128 + random.NextBelow(128));
    }
    EXPECT_EQ(IsValidUtf8(text), RepairUtf8(text) == text);
    EXPECT_TRUE(IsValidUtf8(RepairUtf8(text)));
  }
}

TEST(Unicode, Nfc) {
  EXPECT_EQ(NormalizeNfc("e\u0301 \u1112\u1161\u11AB \u03D2\u0301"), "\u00E9 \uD55C \u03D3");
  EXPECT_EQ(NormalizeNfc("\u0344"), "\u0308\u0301");  // a composition exclusion
  EXPECT_EQ(NormalizeNfc("plain caf\u00E9"), "plain caf\u00E9");
  // The tables of HF tokenizers do not contain these: no reordering, no composition.
  EXPECT_EQ(NormalizeNfc("a\u1AC3\u0301"), "a\u1AC3\u0301");
  EXPECT_EQ(NormalizeNfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

// Long runs of marks are sorted before ICU sees them; short ones are not.
TEST(Unicode, NfcOfLongMarkRunsIsTheSameAsOfShortOnes) {
  const std::string_view marks[] = {"\u0301", "\u0323", "\u0344", "\u0F73", "\u0334",
                                    "\u0F75", "\u0F81", "\u0345", "\u0300"};
  RandomStream random(9);
  for (int trial = 0; trial < 100; ++trial) {
    // NFC of a long run must be a fixed point, and equal that of the run in another legal order:
    // composing piecewise from the left moves each mark past its neighbors of other classes.
    std::string text = "a", piecewise = "a";
    for (uint64_t i = 0, n = 40 + random.NextBelow(40); i < n; ++i) {
      const std::string_view mark = marks[random.NextBelow(std::size(marks))];
      text += mark;
      piecewise = NormalizeNfc(piecewise.append(mark));
    }
    EXPECT_EQ(NormalizeNfc(text), piecewise);
    EXPECT_EQ(NormalizeNfc(piecewise), piecewise);
  }
}

// Sorting the marks by insertion takes hours, which the program's time limit does not allow.
TEST(Unicode, NfcOfHostileMarksIsFast) {
  for (const std::string_view pair : {"\u0301\u0323", "\u0F73\u0F73", "\u0301\u0334"}) {
    std::string text = "a";
    while (text.size() < (1 << 22)) text += pair;
    EXPECT_GE(NormalizeNfc(text).size(), size_t{1} << 22);
  }
}

TEST(Unicode, CharClasses) {
  auto class_of = [](std::string_view text) { return CharAt(text, 0).char_class; };
  for (const char* text : {"a", "Z", "\u00E9", "\u65E5", "\u02B0", "\u01C5", "\U0002EBF0"}) {
    EXPECT_EQ(class_of(text), CharClass::kLetter) << text;
  }
  for (const char* text : {"0", "9", "\u0663", "\u00BD", "\u2167", "\u00B2", "\U00010D40"}) {
    EXPECT_EQ(class_of(text), CharClass::kNumber) << text;
  }
  for (const char* text : {" ", "\t", "\v", "\f", "\u0085", "\u00A0", "\u2003", "\u3000"}) {
    EXPECT_EQ(class_of(text), CharClass::kSpace) << text;
  }
  for (const char* text : {"\x01", "\x1c", "!", "_", "\u180E", "\u200B", "\uFEFF", "\u0301",
                           "\U0001F600", "\uE000", "\U0010FFFF"}) {
    EXPECT_EQ(class_of(text), CharClass::kOther) << text;
  }
  EXPECT_EQ(class_of("\r"), CharClass::kNewline);
  EXPECT_EQ(class_of("\n"), CharClass::kNewline);
  EXPECT_EQ(class_of(""), CharClass::kEnd);
}

TEST(ByteLevel, AlphabetIsABijection) {
  std::set<std::string> bytes;
  for (char32_t c = 0; c < 0x200; ++c) {
    std::string spelling;
    AppendUtf8(c, &spelling);
    const std::optional<std::string> byte = ByteLevelDecode(spelling);
    if (!byte) continue;
    EXPECT_TRUE(byte->size() == 1 && bytes.insert(*byte).second) << spelling;
  }
  EXPECT_EQ(bytes.size(), 256u);
  EXPECT_EQ(ByteLevelDecode("\u0120low\u010A"), " low\n");
  EXPECT_EQ(ByteLevelDecode("a b"), std::nullopt);
  EXPECT_EQ(ByteLevelDecode("\u65E5"), std::nullopt);
}

}  // namespace
}  // namespace taopd::testing
