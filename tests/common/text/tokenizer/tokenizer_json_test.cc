// Files that are damaged, or request something that is not implemented: each is refused by name.
#include "common/text/tokenizer/tokenizer_json.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "common/text/tokenizer/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

constexpr auto kInvalid = kInvalidArgument;

json Toy() {
  return json::parse(ReadFile(SourcePath("tests/common/text/data/qwen2_toy/tokenizer.json")));
}

struct Change {
  const char* name;
  std::function<void(json&)> apply;
  absl::StatusCode code;
  const char* message;
};

void ExpectRefused(const std::vector<Change>& changes) {
  ASSERT_OK(Tokenizer::Parse(Toy().dump()));
  for (const Change& change : changes) {
    SCOPED_TRACE(change.name);
    json file = Toy();
    change.apply(file);
    EXPECT_ERROR(Tokenizer::Parse(file.dump()), change.code, change.message);
  }
}

json Added(const std::string& content, int id) { return {{"content", content}, {"id", id}}; }

TEST(TokenizerJson, DamagedText) {
  const std::string text = Toy().dump();
  for (size_t size = 0; size < text.size(); size += 97) {
    EXPECT_ERROR(Tokenizer::Parse(text.substr(0, size)), kInvalid, "tokenizer.json: not JSON");
  }
  EXPECT_ERROR(Tokenizer::Parse("[]"), kInvalid, "tokenizer.json: not an object");
  const TempDir dir;
  WriteFile(dir.File("tokenizer.json"), "{");
  const absl::Status damaged = Tokenizer::Load(dir.path()).status();
  EXPECT_THAT(std::string(damaged.message()),
              StartsWith(dir.File("tokenizer.json") + ": not JSON"));
  EXPECT_EQ(NumMentions(damaged, "tokenizer.json"), 1) << damaged;
  EXPECT_ERROR(Tokenizer::Parse("{}"), kInvalid, "no object model");
  EXPECT_ERROR(Tokenizer::Parse(std::string((64 << 20) + 1, ' ')), kResourceExhausted,
               "exceeds the limit of 67108864");
  std::string twice = text;
  twice.replace(twice.find("\"!\":0"), 5, "\"!\":0,\"!\":0");
  EXPECT_ERROR(Tokenizer::Parse(twice), kInvalid, "duplicate key \"!\"");
}

TEST(TokenizerJson, Load) {
  TempDir dir;
  EXPECT_ERROR(Tokenizer::Load(dir.path()), kNotFound, "tokenizer.json");
  WriteFile(dir.File("tokenizer.json"), "{}");
  EXPECT_ERROR(Tokenizer::Load(dir.path()), kInvalid, dir.File("tokenizer.json"));
  WriteFile(dir.File("tokenizer.json"), Toy().dump());
  EXPECT_OK(Tokenizer::Load(dir.path()));
  std::filesystem::remove(dir.File("tokenizer.json"));
  std::filesystem::create_symlink("tokenizer.json", dir.File("tokenizer.json"));
  EXPECT_ERROR(Tokenizer::Load(dir.path()), kInvalid, "tokenizer.json");  // not absent
}

TEST(TokenizerJson, Model) {
  ExpectRefused({
      {"type", [](json& f) { f["model"]["type"] = "Unigram"; }, kUnimplemented, "\"Unigram\""},
      {"prefix", [](json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, kUnimplemented,
       "continuing_subword_prefix \"##\""},
      {"suffix", [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, kUnimplemented,
       "end_of_word_suffix"},
      {"dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, kUnimplemented, "dropout 0.1"},
      {"flag", [](json& f) { f["model"]["ignore_merges"] = 1; }, kInvalid, "ignore_merges is 1"},
      {"key", [](json& f) { f["model"]["novel"] = true; }, kUnimplemented, "\"novel\""},
      {"no vocab", [](json& f) { f["model"].erase("vocab"); }, kInvalid, "no vocab"},
      {"empty vocab", [](json& f) { f["model"]["vocab"] = json::object(); }, kInvalid, "0 tokens"},
      {"negative id", [](json& f) { f["model"]["vocab"]["!"] = -1; }, kInvalid, "id -1 of \"!\""},
      {"id 1.5", [](json& f) { f["model"]["vocab"]["!"] = 1.5; }, kInvalid, "id 1.5"},
      {"id too large", [](json& f) { f["model"]["vocab"]["!"] = 1'000'000; }, kInvalid, "999999"},
      {"id twice", [](json& f) { f["model"]["vocab"]["!"] = 1; }, kInvalid, "id 1 is both"},
      {"empty token", [](json& f) { f["model"]["vocab"][""] = 999; }, kInvalid, "empty token"},
      {"no merges", [](json& f) { f["model"].erase("merges"); }, kInvalid, "no merges"},
      {"merge of 3", [](json& f) { f["model"]["merges"][1] = "a b c"; }, kInvalid, "merges[1]"},
      {"merge of 1", [](json& f) { f["model"]["merges"][1] = "ab"; }, kInvalid, "merges[1]"},
      {"merge [1]", [](json& f) { f["model"]["merges"][1] = {"a"}; }, kInvalid, "merges[1]"},
      {"merge number", [](json& f) { f["model"]["merges"][1] = 1; }, kInvalid, "merges[1]"},
      {"unknown part", [](json& f) { f["model"]["merges"][2] = "zz q"; }, kInvalid,
       "merges[2] needs \"zz\""},
      {"unknown whole", [](json& f) { f["model"]["merges"][2] = "q q"; }, kInvalid,
       "merges[2] needs \"qq\""},
      {"unk_token",
       [](json& f) {
         f["model"]["vocab"].erase("~");
         f["added_tokens"] = json::array();
         f["model"]["unk_token"] = "!";
       },
       kUnimplemented, "unk_token"},
      {"byte_fallback",
       [](json& f) {
         f["model"]["vocab"].erase("~");
         f["added_tokens"] = json::array();
         f["model"]["byte_fallback"] = true;
       },
       kUnimplemented, "byte_fallback"},
  });
}

TEST(TokenizerJson, NormalizerPreTokenizerAndDecoder) {
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  auto split = [](json& f) -> json& { return f["pre_tokenizer"]["pretokenizers"][0]; };
  ExpectRefused({
      {"NFKC", [](json& f) { f["normalizer"]["type"] = "NFKC"; }, kUnimplemented,
       "normalizer \"NFKC\""},
      {"in sequence",
       [](json& f) {
         f["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}};
       },
       kUnimplemented, "normalizer \"Lowercase\""},
      {"no pre_tokenizer", [](json& f) { f["pre_tokenizer"] = nullptr; }, kUnimplemented,
       "pre_tokenizer without a ByteLevel"},
      {"Metaspace",
       [](json& f) {
         f["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       kUnimplemented, "pre_tokenizer \"Metaspace\""},
      {"no type", [](json& f) { f["pre_tokenizer"].erase("type"); }, kInvalid, "has no type"},
      {"no pattern", [&](json& f) { f["pre_tokenizer"] = byte_level; }, kUnimplemented,
       "without a pattern"},
      {"two splits",
       [&](json& f) {
         f["pre_tokenizer"]["pretokenizers"].insert(f["pre_tokenizer"]["pretokenizers"].begin(),
                                                    split(f));
       },
       kUnimplemented, "Sequence other than"},
      {"use_regex", [](json& f) { f["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true; },
       kUnimplemented, "Sequence other than"},
      {"prefix space",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
       kUnimplemented, "add_prefix_space after a Split"},
      {"behavior", [&](json& f) { split(f)["behavior"] = "Removed"; }, kUnimplemented,
       "behavior \"Removed\""},
      {"invert", [&](json& f) { split(f)["invert"] = true; }, kUnimplemented, "invert"},
      {"string pattern",
       [&](json& f) {
         split(f)["pattern"] = {{"String", " "}};
       },
       kUnimplemented, "String"},
      {"pattern", [&](json& f) { split(f)["pattern"]["Regex"] = "\\p{Han}+"; }, kUnimplemented,
       "\\p{Han}+"},
      {"decoder", [](json& f) { f["decoder"]["type"] = "WordPiece"; }, kUnimplemented,
       "decoder \"WordPiece\""},
      {"no decoder", [](json& f) { f["decoder"] = nullptr; }, kUnimplemented, "decoder of 0 parts"},
  });
}

TEST(TokenizerJson, PostProcessor) {
  auto template_of = [](json single) {
    return json{{"type", "TemplateProcessing"},
                {"single", std::move(single)},
                {"special_tokens", {{"x", {{"ids", {270}}}}, {"big", {{"ids", {271}}}}}}};
  };
  const json sequence_a = {{"Sequence", {{"id", "A"}}}};
  const json x = {{"SpecialToken", {{"id", "x"}}}};
  ExpectRefused({
      {"Bert",
       [](json& f) {
         f["post_processor"] = {{"type", "BertProcessing"}};
       },
       kUnimplemented, "\"BertProcessing\""},
      {"no single",
       [](json& f) {
         f["post_processor"] = {{"type", "TemplateProcessing"}};
       },
       kInvalid, "no array single"},
      {"never A", [&](json& f) { f["post_processor"] = template_of({x}); }, kUnimplemented,
       "0 times"},
      {"A twice",
       [&](json& f) {
         f["post_processor"] = template_of({sequence_a, x, sequence_a});
       },
       kUnimplemented, "2 times"},
      {"B",
       [&](json& f) {
         f["post_processor"] = template_of({{{"Sequence", {{"id", "B"}}}}});
       },
       kUnimplemented, "is not supported"},
      {"unknown token",
       [&](json& f) {
         f["post_processor"] = template_of({sequence_a, {{"SpecialToken", {{"id", "y"}}}}});
       },
       kInvalid, "no ids for \"y\""},
      {"id out of the vocabulary",
       [&](json& f) {
         f["post_processor"] = template_of({sequence_a, {{"SpecialToken", {{"id", "big"}}}}});
       },
       kInvalid, "id 271 is not in the vocabulary of 271"},
      {"two templates",
       [&](json& f) {
         f["post_processor"] = {
             {"type", "Sequence"},
             {"processors", {template_of({x, sequence_a}), template_of({x, sequence_a})}}};
       },
       kUnimplemented, "two TemplateProcessing"},
  });
}

TEST(TokenizerJson, AddedTokens) {
  ExpectRefused({
      {"array", [](json& f) { f["added_tokens"] = json::object(); }, kInvalid, "not an array"},
      {"entry", [](json& f) { f["added_tokens"][0] = 1; }, kInvalid, "added_tokens[0]"},
      {"empty", [](json& f) { f["added_tokens"][0]["content"] = ""; }, kInvalid, "no content"},
      {"no id", [](json& f) { f["added_tokens"][0].erase("id"); }, kInvalid,
       "id is not an integer"},
      {"flag", [](json& f) { f["added_tokens"][0]["lstrip"] = "yes"; }, kInvalid, "lstrip is"},
      {"key", [](json& f) { f["added_tokens"][0]["color"] = 1; }, kUnimplemented, "\"color\""},
      {"gap", [](json& f) { f["added_tokens"].push_back(Added("<a>", 300)); }, kInvalid,
       "id 300 is not the one that HF tokenizers gives it, 271"},
      {"taken", [](json& f) { f["added_tokens"].push_back(Added("<a>", 5)); }, kInvalid, "271"},
      {"other id than in vocab", [](json& f) { f["added_tokens"].push_back(Added("!", 271)); },
       kInvalid, "gives it, 0"},
      {"twice", [](json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }, kInvalid,
       "occurs twice"},
      {"equal after NFC",
       [](json& f) {
         for (const char* content : {"\u00E9x", "e\u0301x"}) {
           f["added_tokens"].push_back(
               Added(content, 270 + static_cast<int>(f["added_tokens"].size())));
           f["added_tokens"].back()["normalized"] = true;
         }
       },
       kInvalid, "after normalization"},
  });
}

// Options that change nothing are not refused.
TEST(TokenizerJson, HarmlessOptions) {
  json file = Toy();
  file["model"]["unk_token"] = "!";  // every byte has a token
  file["model"]["byte_fallback"] = true;
  file["model"]["dropout"] = 0.0;
  file["model"]["merges"].insert(file["model"]["merges"].begin(), "#version: 0.2");
  // This is up to the caller: transformers turns these options off unless a call requests them.
  file["truncation"] = {
      {"direction", "Right"}, {"max_length", 1}, {"strategy", "LongestFirst"}, {"stride", 0}};
  file["padding"] = {{"strategy", {{"Fixed", 64}}}, {"direction", "Right"}, {"pad_id", 0}};
  file["post_processor"] = nullptr;
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Parse(file.dump()));
  ASSERT_OK_AND_ASSIGN(const auto plain, Tokenizer::Parse(Toy().dump()));
  EXPECT_EQ(tokenizer->Encode("lower low"), plain->Encode("lower low"));
}

}  // namespace
}  // namespace taopd::testing
