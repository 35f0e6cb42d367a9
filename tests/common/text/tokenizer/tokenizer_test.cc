#include "common/text/tokenizer/tokenizer.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/io/jsonl.h"
#include "common/text/tokenizer/incremental_decoder.h"
#include "common/text/unicode/unicode.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string TestFile(const std::string& name) { return SourcePath("tests/common/text/" + name); }

std::unique_ptr<Tokenizer> MakeTokenizer(const std::string& text) {
  return Tokenizer::Parse(text).value();
}

class ToyTokenizer : public ::testing::Test {
 protected:
  const std::string text_ = ReadFile(TestFile("data/qwen2_toy/tokenizer.json"));
  const std::unique_ptr<Tokenizer> tokenizer_ = MakeTokenizer(text_);
};

TEST_F(ToyTokenizer, PublishedCases) {
  const json cases = json::parse(ReadFile(TestFile("data/qwen2_toy/cases.json")));
  int num_checked = 0;
  for (const json& row : cases) {
    if (row.contains("ids")) {
      EXPECT_EQ(tokenizer_->Encode(row["text"].get<std::string>()), row["ids"].get<Ids>());
      ++num_checked;
    }
    if (row.contains("decoded")) {
      const auto ids = row[row.contains("ids") ? "ids" : "decode_ids"].get<Ids>();
      EXPECT_EQ(tokenizer_->Decode(ids, false), row["decoded"]);
      ++num_checked;
    }
    if (row.contains("nfc_in")) {
      EXPECT_EQ(NormalizeNfc(row["nfc_in"].get<std::string>()), row["nfc_out"]);
      ++num_checked;
    }
  }
  EXPECT_GE(num_checked, 5);
}

// Random text against HF tokenizers; see golden/make_tokenizer_golden.py.
class TokenizerGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerGolden, AgreesWithHfTokenizers) {
  const std::string file = GetParam() == "toy" ? "data/qwen2_toy/tokenizer.json"
                                               : "golden/" + GetParam() + ".tokenizer.json";
  const auto tokenizer = MakeTokenizer(ReadFile(TestFile(file)));
  int num_rows = 0;
  ASSERT_OK(
      ReadJsonl(TestFile("golden/" + GetParam() + ".jsonl"), [&](const json& row, int64_t line) {
        ++num_rows;
        const auto ids = row["ids"].get<Ids>();
        EXPECT_EQ(tokenizer->Encode(row["text"].get<std::string>(),
                                    row["add_special_tokens"].get<bool>()),
                  ids)
            << "line " << line << ": " << row["text"];
        EXPECT_EQ(tokenizer->Decode(ids, false), row["decoded"]) << line;
        EXPECT_EQ(tokenizer->Decode(ids, true), row["decoded_skip_special"]) << line;
        EXPECT_EQ(tokenizer->Decode(row["decode_ids"].get<Ids>(), false), row["decode_ids_text"])
            << line;
        return absl::OkStatus();
      }));
  EXPECT_EQ(num_rows, 200);
}

INSTANTIATE_TEST_SUITE_P(Variants, TokenizerGolden,
                         ::testing::Values("toy", "gpt2_style", "llama3_style"),
                         [](const auto& test) { return test.param; });

TEST_F(ToyTokenizer, Lookups) {
  EXPECT_EQ(tokenizer_->vocab_size(), 271);
  for (int32_t id = 0; id < 271; ++id) {
    EXPECT_EQ(tokenizer_->TokenToId(tokenizer_->IdToToken(id)), id);
  }
  EXPECT_EQ(tokenizer_->IdToToken(270), "<|endoftext|>");
  EXPECT_EQ(tokenizer_->TokenToId("\u0120low"), 259);
  EXPECT_EQ(tokenizer_->TokenBytes(259), " low");
  EXPECT_EQ(tokenizer_->TokenToId("nothing like it"), std::nullopt);
  for (const int32_t id : {-1, 271, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer_->IdToToken(id), "");
    EXPECT_EQ(tokenizer_->TokenBytes(id), "");
    EXPECT_EQ(tokenizer_->Decode({id}), "");
  }
  EXPECT_EQ(tokenizer_->Decode({259, 270, 259}, true), " low low");
  EXPECT_EQ(tokenizer_->Decode({259, 270, 259}, false), " low<|endoftext|> low");
  EXPECT_EQ(tokenizer_->Encode("", true), Ids());
}

TEST_F(ToyTokenizer, HashNamesTheContentNotTheLayout) {
  const json file = json::parse(text_);
  auto hash_after = [&](const std::function<void(json&)>& change) {
    json changed = file;
    change(changed);
    return MakeTokenizer(changed.dump())->hash();
  };
  EXPECT_EQ(tokenizer_->hash().size(), 64u);
  // Another order of keys, merges as pairs, the added token also in the vocabulary.
  EXPECT_EQ(hash_after([](json& f) {
              for (json& merge : f["model"]["merges"]) {
                const auto text = merge.get<std::string>();
                const size_t space = text.find(' ');
                merge = {text.substr(0, space), text.substr(space + 1)};
              }
              f["model"]["vocab"]["<|endoftext|>"] = 270;
            }),
            tokenizer_->hash());
  const std::vector<std::function<void(json&)>> changes = {
      [](json& f) { std::swap(f["model"]["merges"][8], f["model"]["merges"][9]); },
      [](json& f) { f["model"]["merges"].erase(9); },
      [](json& f) { std::swap(f["model"]["vocab"]["!"], f["model"]["vocab"]["a"]); },
      [](json& f) { f["added_tokens"][0]["content"] = "<|end|>"; },
      [](json& f) { f["added_tokens"][0]["lstrip"] = true; },
      [](json& f) { f["added_tokens"][0]["special"] = false; },
      [](json& f) {
        f["added_tokens"].push_back({{"content", "<x>"}, {"id", 271}});
      },
  };
  std::set<std::string> hashes = {tokenizer_->hash()};
  for (const auto& change : changes) {
    EXPECT_TRUE(hashes.insert(hash_after(change)).second) << hashes.size();
  }
}

TEST_F(ToyTokenizer, ThreadsShareOneTokenizer) {
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int i = 0; i < 100; ++i) {
    texts.push_back(Concat(i, " lower newer we're ", i * i, "<|endoftext|> \u00E9 lowest", i));
    expected.push_back(MakeTokenizer(text_)->Encode(texts.back()));
  }
  std::vector<int> num_wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const int which = (7 * i + t) % 100;
        num_wrong[t] += tokenizer_->Encode(texts[which]) != expected[which];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, std::vector<int>(4, 0));
}

// The pieces of a stream together are the whole text, whatever the ids are; a whole character is
// not held back.
TEST_F(ToyTokenizer, IncrementalDecoding) {
  RandomStream random(19);
  for (int trial = 0; trial < 3000; ++trial) {
    Ids ids(random.NextBelow(12));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.NextBelow(271));
    for (const bool skip : {false, true}) {
      IncrementalDecoder decoder(tokenizer_.get(), skip);
      std::string text;
      for (const int32_t id : ids) {
        const std::string piece = decoder.Push(id);
        EXPECT_TRUE(IsValidUtf8(piece));
        text += piece;
      }
      EXPECT_EQ(text + decoder.Finish(), tokenizer_->Decode(ids, skip));
    }
  }
  IncrementalDecoder decoder(tokenizer_.get());
  const Ids smile = tokenizer_->Encode("\U0001F600");
  ASSERT_EQ(smile.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(decoder.Push(smile[i]), "");
  EXPECT_EQ(decoder.Push(smile[3]), "\U0001F600");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST_F(ToyTokenizer, IncrementalDecodingGivesWhatIsCertain) {
  const auto id_of_byte = [&](char byte) {
    int32_t id = 0;
    while (tokenizer_->TokenBytes(id) != std::string(1, byte)) ++id;
    return id;
  };
  IncrementalDecoder decoder(tokenizer_.get());
  EXPECT_EQ(decoder.Push(id_of_byte('\xE4')), "");
  EXPECT_EQ(decoder.Push(id_of_byte('\xBD')), "");
  EXPECT_EQ(decoder.Push(id_of_byte('\xA0')), "\u4F60");
  // No byte can complete E0 80 to a character.
  EXPECT_EQ(decoder.Push(id_of_byte('\xE0')), "");
  EXPECT_EQ(decoder.Push(id_of_byte('\x80')), "\uFFFD\uFFFD");
  EXPECT_EQ(decoder.Push(id_of_byte('\xF0')), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
}

// Bytes that the vocabulary lacks are dropped, as HF tokenizers does without unk_token.
TEST_F(ToyTokenizer, BytesWithoutATokenAreDropped) {
  json file = json::parse(text_);
  const json id_of_l = file["model"]["vocab"]["l"];
  file["model"]["vocab"].erase("l");
  file["model"]["merges"] = json::array();
  file["added_tokens"] = json::array();
  const auto tokenizer = MakeTokenizer(file.dump());
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("low lll")), "ow ");
  EXPECT_EQ(tokenizer->CountUnknownBytes("low lll"), 4);
  EXPECT_EQ(tokenizer->CountUnknownBytes("ow "), 0);
  EXPECT_EQ(tokenizer->CountUnknownBytes(""), 0);
  EXPECT_EQ(tokenizer_->CountUnknownBytes("low lll"), 0);
  // One warning for the first text that loses bytes, and none for a tokenizer that only could.
  const auto quiet = MakeTokenizer(file.dump());
  ::testing::internal::CaptureStderr();
  quiet->Encode("ow ");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  quiet->Encode("low lll");
  quiet->Encode("lll");
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::EndsWith("a text loses bytes for which the tokenizer has no token lost_bytes=4 "
                          "text_bytes=7\n"));
  ::testing::internal::CaptureStderr();
  MakeTokenizer(file.dump());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  // A word that is a token as a whole loses nothing.
  file["model"]["ignore_merges"] = true;
  file["model"]["vocab"]["ll"] = id_of_l;
  EXPECT_EQ(MakeTokenizer(file.dump())->CountUnknownBytes("ll"), 0);
  EXPECT_EQ(MakeTokenizer(file.dump())->CountUnknownBytes("lll"), 3);
}

}  // namespace
}  // namespace taopd::testing
