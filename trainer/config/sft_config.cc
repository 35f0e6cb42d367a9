#include "trainer/config/sft_config.h"

namespace taopd {

void SftModelConfig::Declare(SettingTable& keys) {
  keys.Add("init", &init,
           "Hugging Face model directory to start from. If it is empty, the weights are random.");
  keys.Add("config", &config,
           "config.json of a model with random weights, which is used if init is empty.");
  keys.AddMutable(
      "tokenizer", &tokenizer,
      "Directory of a tokenizer. If init is set, it is another model's tokenizer, whose special "
      "tokens and template the model takes over. If it is empty, init's own tokenizer is used.");
  keys.Add("dtype", &dtype,
           "Data type of the parameters and of the computation: float32, bfloat16, or auto, which "
           "keeps the stored type.",
           OneOf({"auto", "float32", "bfloat16"}));
  keys.AddSection("lora", "Low-rank adapters (LoRA).", lora);
}

void SftDataConfig::Declare(SettingTable& keys) {
  keys.AddMutable("train", &train,
                  "JSON Lines or Parquet files of conversations, or of prompts and responses. Each "
                  "prompt and response is text, a list of messages, or token ids under KEY_ids.");
  keys.AddMutable("val", &val, "JSON Lines or Parquet files for the validation loss.");
  keys.Add("prompt_key", &prompt_key, "Key of the prompt.", NotEmpty());
  keys.Add("response_key", &response_key, "Key of the response, whose tokens alone are learned.",
           NotEmpty());
  keys.Add("messages_key", &messages_key,
           "Key of a conversation in rows without a response. A conversation is a list of messages "
           "that ends with one of the assistant. If the key is empty, rows hold no conversations.");
  keys.Add("assistant_turns", &assistant_turns,
           "Turns of a conversation that are learned: only the last one (last), or each one, with "
           "the messages before it as its prompt (all).");
  keys.Add("max_length", &max_length,
           "Maximum length of a prompt with its response in tokens. Longer rows are an error.",
           AtLeast<int64_t>(2));
  keys.Add("append_eos", &append_eos,
           "End each response with the model's end-of-sequence token if it lacks one.");
  DeclarePrompts(keys);
}

void SftTrainerConfig::Declare(SettingTable& keys) {
  keys.AddMutable("total_steps", &total_steps, "Number of optimizer steps.", AtLeast<int64_t>(1));
  keys.Add("batch_size", &batch_size, "Number of rows per step.", AtLeast<int64_t>(1));
  keys.AddMutable("micro_batch_tokens", &micro_batch_tokens,
                  "Maximum number of tokens per forward and backward pass.", AtLeast<int64_t>(1));
  keys.AddMutable("eval_every", &eval_every,
                  "Number of steps between validations. The last step is always validated. 0 means "
                  "only the last step.",
                  AtLeast<int64_t>(0));
  keys.AddMutable("save_every", &save_every,
                  "Number of steps between checkpoints. The last step is always saved. 0 means "
                  "only the last step.",
                  AtLeast<int64_t>(0));
  DeclareProcess(keys);
}

void SftConfig::Declare(SettingTable& keys) {
  keys.AddSection("run", "The run itself.", run);
  keys.AddSection("model", "The model that learns.", model);
  keys.AddSection("data", "Prompt and response pairs.", data);
  keys.AddSection("optimizer", "AdamW and its schedule.", optimizer);
  keys.AddSection("trainer", "Steps, batches, checkpoints.", trainer);
}

absl::Status SftConfig::Check() const {
  if (model.lora.is_on() && !model.tokenizer.empty()) return LoraWithTokenizer("model");
  return optimizer.Check();
}

}  // namespace taopd
