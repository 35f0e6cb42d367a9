// taopd-trainer render: chats through a model's template, and templates by themselves, line by
// line.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "common/io/file.h"
#include "common/text/chat/chat_template.h"
#include "common/text/jinja/template.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/json_lines/json_lines.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

struct RenderFlags {
  std::string tokenizer_dir;
  std::string template_path;
};

absl::StatusOr<ChatOptions> ReadOptions(const ordered_json& line) {
  TAOPD_RETURN_IF_ERROR(
      CheckKeys(line, {"messages", "tools", "documents", "kwargs", "template_name",
                       "add_generation_prompt", "continue_final_message"}));
  ChatOptions options;
  if (line.contains("tools")) options.tools = line["tools"];
  if (line.contains("documents")) options.documents = line["documents"];
  if (line.contains("kwargs") && !line["kwargs"].is_null()) options.kwargs = line["kwargs"];
  if (line.contains("template_name")) {
    if (!line["template_name"].is_string()) return InvalidArgument("template_name is not a string");
    options.template_name = line["template_name"].get<std::string>();
  }
  TAOPD_ASSIGN_OR_RETURN(options.add_generation_prompt,
                         ReadFlag(line, "add_generation_prompt", options.add_generation_prompt));
  TAOPD_ASSIGN_OR_RETURN(options.continue_final_message,
                         ReadFlag(line, "continue_final_message", options.continue_final_message));
  return options;
}

// {"context"} through the file's template, or {"template", "context"}.
absl::StatusOr<ordered_json> AnswerTemplate(const ordered_json& line,
                                            const jinja::Template* file_template) {
  TAOPD_RETURN_IF_ERROR(CheckKeys(line, {"template", "context"}));
  const ordered_json context = line.value("context", ordered_json::object());
  std::optional<jinja::Template> line_template;
  if (line.contains("template")) {
    if (!line["template"].is_string()) return InvalidArgument("template is not a string");
    TAOPD_ASSIGN_OR_RETURN(line_template,
                           jinja::Template::Parse(line["template"].get_ref<const std::string&>()));
  }
  TAOPD_ASSIGN_OR_RETURN(const jinja::Rendering rendering,
                         (line_template ? &*line_template : file_template)->Render(context));
  return ordered_json{{"text", rendering.text}};
}

absl::StatusOr<ordered_json> AnswerChat(const ordered_json& line, const ChatTemplate& chat,
                                        const Tokenizer& tokenizer) {
  if (!line.contains("messages")) return InvalidArgument("line has no messages");
  TAOPD_ASSIGN_OR_RETURN(const ChatOptions options, ReadOptions(line));
  TAOPD_ASSIGN_OR_RETURN(const jinja::Rendering rendering, chat.Render(line["messages"], options));
  return ordered_json{{"text", rendering.text},
                      {"ids", tokenizer.Encode(rendering.text, /*add_special_tokens=*/false)}};
}

absl::Status RenderLines(const RenderFlags& flags) {
  std::optional<jinja::Template> file_template;
  if (!flags.template_path.empty()) {
    TAOPD_ASSIGN_OR_RETURN(const std::string source,
                           BadData(ReadFileToString(flags.template_path)));
    TAOPD_ASSIGN_OR_RETURN(file_template,
                           BadData(Annotate(jinja::Template::Parse(source), flags.template_path)));
  }
  std::unique_ptr<Tokenizer> tokenizer;
  // A directory without a chat template still renders lines that bring their own.
  absl::StatusOr<ChatTemplate> chat = NotFound("no --tokenizer");
  if (!flags.tokenizer_dir.empty()) {
    TAOPD_ASSIGN_OR_RETURN(tokenizer, BadData(Tokenizer::Load(flags.tokenizer_dir)));
    chat = ChatTemplate::Load(flags.tokenizer_dir);
  }
  return AnswerJsonLines([&](const ordered_json& line) -> absl::StatusOr<ordered_json> {
    if (file_template || line.contains("template")) {
      return AnswerTemplate(line, file_template ? &*file_template : nullptr);
    }
    if (!chat.ok()) return chat.status();
    return AnswerChat(line, *chat, *tokenizer);
  });
}

}  // namespace

Subcommand AddRender(CLI::App& app) {
  auto flags = std::make_shared<RenderFlags>();
  CLI::App* command = app.add_subcommand(
      "render",
      "Render chats: read JSON lines {\"messages\", \"tools\"?, \"documents\"?, "
      "\"add_generation_prompt\"?, \"continue_final_message\"?, \"template_name\"?, \"kwargs\"?} "
      "from the standard input, and write {\"text\", \"ids\"} or {\"error\"}. A line "
      "{\"template\", \"context\"} renders a template without a tokenizer");
  command->add_option("--tokenizer", flags->tokenizer_dir,
                      "Directory with tokenizer.json and a chat template");
  command->add_option("--template", flags->template_path,
                      "Template file. Lines are then {\"context\"}, and answers {\"text\"}");
  return {command, [flags] { return RenderLines(*flags); }};
}

}  // namespace taopd
