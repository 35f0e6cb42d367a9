#include "trainer/commands/sft/sft_data.h"

#include "trainer/commands/prompts.h"
#include "trainer/run/exit_status.h"

namespace taopd {

absl::StatusOr<SftData> LoadSftData(const SftDataConfig& data, const ModelConfig& model,
                                    const std::string& tokenizer_dir, const Tokenizer* tokenizer) {
  if (data.max_length > model.max_position_embeddings) {
    return BadUsage(InvalidArgument("data.max_length ", data.max_length,
                                    " exceeds the model's max_position_embeddings ",
                                    model.max_position_embeddings));
  }
  DataConfig prompts;
  prompts.chat_template_kwargs = data.chat_template_kwargs;
  if (const auto kwargs = ParseChatTemplateKwargs(data.chat_template_kwargs); !kwargs.ok())
    return BadUsage(kwargs.status());
  const auto prompt_model = MakePromptModel(prompts, tokenizer_dir, tokenizer, model.vocab_size);
  if (!prompt_model.ok()) return BadData(Annotate(prompt_model.status(), "model"));
  DatasetOptions options;
  options.prompt_key = data.prompt_key;
  options.answer_key.clear();
  options.response_key = data.response_key;
  options.messages_key = data.messages_key;
  options.assistant_turns = data.assistant_turns;
  options.render = prompt_model->render;
  options.render_finished = prompt_model->render_finished;
  options.add_special_tokens = data.add_special_tokens;
  options.max_length = data.max_length;
  options.vocab_size = model.vocab_size;
  if (data.append_eos && !model.eos_token_ids.empty())
    options.append_eos_id = model.eos_token_ids.front();
  SftData result;
  auto train = LoadPrompts(data.train, tokenizer, options);
  if (!train.ok()) return BadData(Annotate(train.status(), "data.train"));
  result.train = *std::move(train);
  if (data.val.empty()) return result;
  auto val = LoadPrompts(data.val, tokenizer, options);
  if (!val.ok()) return BadData(Annotate(val.status(), "data.val"));
  result.val = *std::move(val);
  return result;
}

}  // namespace taopd
