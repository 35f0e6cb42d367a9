// Weights to safetensors, and their name.
#include <torch/csrc/autograd/grad_mode.h>

#include <map>

#include "common/io/file.h"
#include "common/io/safetensors.h"
#include "common/io/sha256.h"
#include "common/model/decoder.h"
#include "common/model/weights.h"

namespace taopd {
namespace {

// What a Hugging Face directory holds beside the configuration and the weights.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "tokenizer.model",
                                           "special_tokens_map.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "added_tokens.json",
                                           "chat_template.jinja",
                                           "vocab.txt",
                                           "chat_template.json",
                                           "generation_config.json"};

std::span<const std::byte> BytesOf(const at::Tensor& cpu_tensor) {
  return {static_cast<const std::byte*>(cpu_tensor.const_data_ptr()), cpu_tensor.nbytes()};
}

at::Tensor OnCpu(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

ModelConfig ConfigAsHeld(const Decoder& decoder) {
  ModelConfig config = decoder.config();
  config.dtype = ConfigDtype(decoder.dtype());
  return config;
}

}  // namespace

absl::Status SaveDecoder(const Decoder& decoder, const std::string& model_dir,
                         const std::string& tokenizer_dir) {
  TAOPD_RETURN_IF_ERROR(MakeDirectories(model_dir));
  std::vector<at::Tensor> on_cpu;  // keeps the bytes alive
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, parameter] : decoder.Parameters()) {
    on_cpu.push_back(OnCpu(parameter));
    tensors.push_back(
        {name, SafetensorsDtype(decoder.dtype()), parameter.sizes().vec(), BytesOf(on_cpu.back())});
  }
  // transformers refuses files whose metadata does not name a format.
  TAOPD_RETURN_IF_ERROR(
      WriteSafetensors(model_dir + "/model.safetensors", tensors, {{"format", "pt"}}));
  if (!tokenizer_dir.empty()) {
    for (const char* name : kTokenizerFiles) {
      const std::string from = tokenizer_dir + "/" + name;
      if (!FileExists(from)) continue;
      TAOPD_RETURN_IF_ERROR(CopyFileAtomically(from, model_dir + "/" + name));
    }
  }
  return WriteFileAtomically(model_dir + "/config.json", ModelConfigJson(ConfigAsHeld(decoder)));
}

absl::StatusOr<std::string> WeightsRevision(const Decoder& decoder) {
  Sha256 hash;
  // The fields and not the file: spacing, key order and the writer's version are not the model.
  ModelConfig config = ConfigAsHeld(decoder);
  config.raw_json.clear();
  hash.Update(ModelConfigJson(config));
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, parameter] : decoder.Parameters()) by_name[name] = parameter;
  for (const auto& [name, parameter] : by_name) {
    hash.Update(
        Concat("\n", name, " ", SafetensorsDtype(decoder.dtype()), " ", parameter.sizes(), "\n"));
    hash.Update(BytesOf(OnCpu(parameter)));
  }
  return hash.HexDigest();
}

}  // namespace taopd
