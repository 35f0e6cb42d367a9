// The subcommand generate: continues a prompt, or chats on the terminal.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/generate/response_generator.h"
#include "trainer/setup/prompts.h"

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

// A conversation: each answer sees all earlier turns.
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
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckRequest(request)));
  TAOPD_ASSIGN_OR_RETURN(const auto generator, request.endpoint.empty()
                                                   ? MakeLocalGenerator(request)
                                                   : MakeEndpointGenerator(request));
  if (request.chat) {
    Chat chat(request, generator.get());
    return request.prompt.empty() ? chat.Run() : chat.Say(request.prompt);
  }
  const auto generated =
      generator->Generate({request.prompt, request.prompt_ids, nullptr}, request.seed, Print);
  if (!generated.ok()) return generated.status();
  Print("\n");
  return absl::OkStatus();
}

}  // namespace

Subcommand AddGenerate(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue a prompt, or chat with a model, on the terminal");
  auto request = std::make_shared<GenerateRequest>();
  command->add_option("--model", request->model_dir,
                      "Hugging Face model directory. With --endpoint, name of the server's model "
                      "(default: its first)");
  auto* endpoint =
      command->add_option("--endpoint", request->endpoint,
                          "OpenAI-compatible server that answers instead of a model in "
                          "this process");
  command
      ->add_option("--api-key-env", request->api_key_env,
                   "Environment variable that holds the API key. Default: OPENAI_API_KEY")
      ->needs(endpoint);
  auto* prompt = command->add_option("--prompt", request->prompt,
                                     "Text to continue or, with --chat, the only question");
  command->add_flag("--chat", request->chat,
                    "Answer through the chat template. Without --prompt, each line of standard "
                    "input is a turn of one conversation, until its end or /quit");
  command->add_option("--system", request->system, "System message of the chat");
  command->add_option("--chat-template-kwargs", request->chat_template_kwargs,
                      "Variables for the chat template as a JSON object, such as "
                      "'{\"enable_thinking\": false}'");
  command
      ->add_option("--prompt-ids", request->prompt_ids,
                   "Token ids to continue, separated by spaces or commas")
      ->delimiter(',')
      ->excludes(prompt);
  command
      ->add_option("--max-new-tokens", request->max_new_tokens,
                   "Maximum number of tokens to generate. Default: 256, or the rest of the model's "
                   "positions")
      ->check(PositiveNumber());
  command->option_defaults()->always_capture_default();
  command->add_option("--temperature", request->temperature, "Sampling temperature. 0 means greedy")
      ->check(NonNegativeNumber());
  command
      ->add_option("--top-p", request->top_p,
                   "Sample from the most probable tokens whose probabilities sum to this number. 1 "
                   "turns it off")
      ->check(NumberIn(1e-9, 1.0));
  command
      ->add_option("--top-k", request->top_k,
                   "Sample from this number of most probable tokens. 0 turns it off")
      ->check(NonNegativeNumber());
  command->add_option("--seed", request->seed, "Seed of the sampling")->check(NonNegativeNumber());
  command
      ->add_option("--dtype", request->dtype,
                   "Data type of the weights: float32, bfloat16, float16, or auto, which keeps the "
                   "stored type")
      ->excludes(endpoint);
  command
      ->add_option(
          "--device", request->device,
          "Device to compute on: cpu, cuda, cuda:N, or auto, which means cuda if there is a GPU")
      ->excludes(endpoint);
  return {command, [request] { return Generate(*request); }};
}

}  // namespace taopd
