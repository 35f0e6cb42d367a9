// taopd-trainer generate: continues a prompt, or chats, on the terminal.
#include <memory>

#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/commands.h"

namespace taopd {

Subcommand AddGenerate(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "generate", "Continue a prompt, or chat with a model, streamed to the terminal");
  auto request = std::make_shared<GenerateRequest>();
  command->add_option(
      "--model", request->model_dir,
      "Hugging Face model directory; with --endpoint the server's model, by default "
      "its first");
  auto* endpoint = command->add_option("--endpoint", request->endpoint,
                                       "OpenAI-compatible server in place of a model in this "
                                       "process");
  command
      ->add_option("--api-key-env", request->api_key_env,
                   "Environment variable of the API key; default: OPENAI_API_KEY")
      ->needs(endpoint);
  auto* prompt = command->add_option("--prompt", request->prompt,
                                     "Text to continue, or with --chat the only question");
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
                   "Maximum number of tokens to generate; without it, 256 or the rest of the "
                   "model's positions")
      ->check(PositiveNumber());
  command->add_option("--temperature", request->temperature, "0 = greedy")
      ->check(NonNegativeNumber())
      ->capture_default_str();
  command->add_option("--top-p", request->top_p, "Nucleus sampling; 1 = off")
      ->check(NumberIn(1e-9, 1.0))
      ->capture_default_str();
  command->add_option("--top-k", request->top_k, "0 = off")
      ->check(NonNegativeNumber())
      ->capture_default_str();
  command->add_option("--seed", request->seed, "Seed of the sampling")
      ->check(NonNegativeNumber())
      ->capture_default_str();
  command->add_option("--dtype", request->dtype, "auto, float32, bfloat16, float16")
      ->excludes(endpoint)
      ->capture_default_str();
  command->add_option("--device", request->device, "auto, cpu, cuda, cuda:1")
      ->excludes(endpoint)
      ->capture_default_str();
  return {command, [request] { return EndCommand(RunGenerate(*request)); }};
}

}  // namespace taopd
