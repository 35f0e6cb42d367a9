#include "trainer/commands/sft/sft_data.h"

#include "trainer/run/exit_status.h"
#include "trainer/setup/prompts.h"

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
  TAOPD_RETURN_IF_ERROR(BadUsage(ParseChatTemplateKwargs(data.chat_template_kwargs)).status());
  TAOPD_ASSIGN_OR_RETURN(
      const PromptModel prompt_model,
      BadData(Annotate(MakePromptModel(prompts, tokenizer_dir, tokenizer, model), "model")));
  DatasetOptions options;
  options.prompt_key = data.prompt_key;
  options.answer_key.clear();
  options.response_key = data.response_key;
  options.messages_key = data.messages_key;
  options.assistant_turns = data.assistant_turns;
  options.render = prompt_model.render;
  options.render_finished = prompt_model.render_finished;
  options.add_special_tokens = data.add_special_tokens;
  options.max_length = data.max_length;
  options.vocab_size = model.vocab_size;
  if (data.append_eos) options.append_eos_id = prompt_model.eos_id;
  SftData result;
  TAOPD_ASSIGN_OR_RETURN(
      result.train, BadData(Annotate(LoadPrompts(data.train, tokenizer, options), "data.train")));
  if (data.val.empty()) return result;
  TAOPD_ASSIGN_OR_RETURN(result.val,
                         BadData(Annotate(LoadPrompts(data.val, tokenizer, options), "data.val")));
  return result;
}

}  // namespace taopd
