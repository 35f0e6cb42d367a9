// The subcommand generate: continues a prompt, or chats on the terminal.

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "trainer/commands/generate/response_generator.h"
#include "trainer/commands/process.h"
#include "trainer/commands/prompts.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kQuit[] = "/quit";

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

absl::Status CheckRequest(const GenerateRequest& request) {
  if (request.model_dir.empty() && request.endpoint.empty())
    return InvalidArgument("generate needs --model or --endpoint");
  if (request.chat && !request.prompt_ids.empty())
    return InvalidArgument("--chat takes text: give --prompt instead of --prompt-ids");
  if (!request.chat && !request.system.empty()) return InvalidArgument("--system is for --chat");
  if (!request.chat && !request.chat_template_kwargs.empty())
    return InvalidArgument("--chat-template-kwargs is for --chat");
  const auto kwargs = ParseChatTemplateKwargs(request.chat_template_kwargs);
  return Annotate(kwargs.status(), "--chat-template-kwargs");
}

// A conversation, of which each answer knows all that was said before.
class Chat {
 public:
  Chat(const GenerateRequest& request, ResponseGenerator* generator)
      : request_(request), generator_(generator) {
    if (!request.system.empty()) Add("system", request.system);
  }

  absl::Status Say(const std::string& text) {
    Add("user", text);
    const auto answer =
        generator_->Generate({"", {}, messages_}, request_.seed + num_turns_, Print);
    ++num_turns_;
    if (!answer.ok()) return answer.status();
    Print("\n");
    if (answer->truncated) std::fprintf(stderr, "(the answer is cut: see --max-new-tokens)\n");
    Add("assistant", answer->text);
    return absl::OkStatus();
  }

  // Answers each line of standard input until its end or /quit.
  absl::Status Run() {
    const bool is_terminal = isatty(STDIN_FILENO) == 1;
    if (is_terminal) std::fprintf(stderr, "%s or Ctrl-D ends the conversation\n", kQuit);
    std::string line;
    while (true) {
      if (is_terminal) std::fprintf(stderr, "> ");
      if (!std::getline(std::cin, line) || line == kQuit) break;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      TAOPD_RETURN_IF_ERROR(Say(line));
    }
    return absl::OkStatus();
  }

 private:
  void Add(const std::string& role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }

  const GenerateRequest& request_;
  ResponseGenerator* const generator_;
  Json messages_ = Json::array();
  uint64_t num_turns_ = 0;
};

absl::Status Generate(const GenerateRequest& request) {
  if (absl::Status checked = CheckRequest(request); !checked.ok()) return BadUsage(checked);
  auto generator =
      request.endpoint.empty() ? MakeLocalGenerator(request) : MakeEndpointGenerator(request);
  if (!generator.ok()) return generator.status();
  if (request.chat) {
    Chat chat(request, generator->get());
    return request.prompt.empty() ? chat.Run() : chat.Say(request.prompt);
  }
  const auto generated =
      (*generator)->Generate({request.prompt, request.prompt_ids, nullptr}, request.seed, Print);
  if (!generated.ok()) return generated.status();
  Print("\n");
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGenerate(const GenerateRequest& request) {
  return CatchExceptions([&] { return Generate(request); });
}

}  // namespace taopd
