// taopd-trainer tokenize: texts to ids and ids to texts, line by line.
#include <CLI/CLI.hpp>
#include <memory>

#include "common/text/tokenizer/tokenizer.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/json_lines/json_lines.h"
#include "trainer/data/row_reader.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

absl::StatusOr<ordered_json> AnswerLine(const ordered_json& line, const Tokenizer& tokenizer) {
  TAOPD_RETURN_IF_ERROR(
      CheckKeys(line, {"text", "ids", "add_special_tokens", "skip_special_tokens"}));
  if (line.contains("text") == line.contains("ids")) {
    return InvalidArgument("a line has either text or ids");
  }
  TAOPD_ASSIGN_OR_RETURN(const bool add_special, ReadFlag(line, "add_special_tokens", true));
  TAOPD_ASSIGN_OR_RETURN(const bool skip_special, ReadFlag(line, "skip_special_tokens", false));
  std::vector<int32_t> ids;
  if (line.contains("ids")) {
    TAOPD_ASSIGN_OR_RETURN(ids, ReadTokenIds(line["ids"], "ids", tokenizer.vocab_size()));
  } else {
    if (!line["text"].is_string()) return InvalidArgument("text is not a string");
    ids = tokenizer.Encode(line["text"].get_ref<const std::string&>(), add_special);
  }
  ordered_json answer;
  answer["ids"] = ids;
  answer["tokens"] = ordered_json::array();
  for (const int32_t id : ids) answer["tokens"].push_back(tokenizer.IdToToken(id));
  answer["text"] = tokenizer.Decode(ids, skip_special);
  return answer;
}

}  // namespace

Subcommand AddTokenize(CLI::App& app) {
  auto tokenizer_dir = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "tokenize",
      "Tokenize texts: read JSON lines {\"text\", \"add_special_tokens\": true} or {\"ids\", "
      "\"skip_special_tokens\": false} from the standard input, and write {\"ids\", \"tokens\", "
      "\"text\"} or {\"error\"}");
  command->add_option("--tokenizer", *tokenizer_dir, "Directory with tokenizer.json")->required();
  return {command, [tokenizer_dir]() -> absl::Status {
            TAOPD_ASSIGN_OR_RETURN(const auto tokenizer, BadData(Tokenizer::Load(*tokenizer_dir)));
            return AnswerJsonLines(
                [&](const ordered_json& line) { return AnswerLine(line, *tokenizer); });
          }};
}

}  // namespace taopd
