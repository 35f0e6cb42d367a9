// Random initial weights.
#include <c10/core/InferenceMode.h>

#include <exception>

#include "common/model/config/dtype.h"
#include "common/model/torch_errors.h"
#include "common/model/transformer.h"
#include "common/model/weights/model_files.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/parallel_loop.h"

namespace taopd {
namespace {

// Returns what transformers begins with: matrices and the embedding are normal(0,
// initializer_range), norms one, biases and the embedding's row of the padding token zero.
at::Tensor InitialValue(const WeightSlot& slot, const ModelConfig& config, bool is_embedding,
                        RandomStream* random) {
  if (slot.init == WeightInit::kOnes) return at::ones(slot.shape);
  if (slot.init == WeightInit::kZeros) return at::zeros(slot.shape);
  at::Tensor value = at::empty(slot.shape, at::kFloat);
  float* data = value.data_ptr<float>();
  const RandomStream first = *random;
  ParallelLoop(value.numel(), /*grain=*/1 << 12, [&](int64_t begin, int64_t end) {
    RandomStream numbers = first;
    numbers.SkipNormals(begin);
    for (int64_t i = begin; i < end; ++i) {
      data[i] = static_cast<float>(config.initializer_range * numbers.NextNormal());
    }
  });
  random->SkipNormals(value.numel());
  if (is_embedding && config.pad_token_id) value[*config.pad_token_id].zero_();
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(const ModelConfig& given,
                                                     const DecoderOptions& options,
                                                     RandomStream random) {
  // Applies the same checks and the same architecture settings as for a file.
  ModelConfig fields = given;
  fields.raw_json.clear();
  TAOPD_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(ModelConfigJson(fields)));
  config.raw_json = given.raw_json;
  TAOPD_ASSIGN_OR_RETURN(const at::Device device, ParseDevice(options.device));
  TAOPD_ASSIGN_OR_RETURN(const DataType type, ParseDtype(options.dtype, config.dtype));
  const at::ScalarType dtype = ScalarTypeOf(type);
  if (options.vocabulary) TAOPD_RETURN_IF_ERROR(ChangeVocabulary(*options.vocabulary, &config));
  if (options.requires_grad) TAOPD_RETURN_IF_ERROR(CheckTrains(dtype));
  TAOPD_RETURN_IF_ERROR(CheckWeightsFit(config, device, dtype));
  const c10::InferenceMode normal(false);  // parameters may be trained
  try {
    auto decoder = std::make_unique<TransformerDecoder>(config, device, dtype);
    for (const WeightSlot& slot : decoder->slots()) {
      const bool is_embedding = &slot == &decoder->slots().front();
      *slot.tensor = InitialValue(slot, decoder->config(), is_embedding, &random).to(device, dtype);
    }
    if (options.lora) TAOPD_RETURN_IF_ERROR(decoder->AddAdapters(*options.lora));
    decoder->FinishWeights(options.requires_grad);
    return decoder;
  } catch (const std::exception& error) {
    return StatusOfException(error, "creating a model");
  }
}

}  // namespace taopd
