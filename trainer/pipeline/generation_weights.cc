#include "trainer/pipeline/generation_weights.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <utility>
#include <vector>

#include "common/model/weights/model_files.h"
#include "common/model/weights/weights.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<GenerationWeights>> GenerationWeights::Make(const Decoder* student,
                                                                           bool packs) {
  if (student->lora() != nullptr) {
    return std::unique_ptr<GenerationWeights>(
        new GenerationWeights(student, student->WithOwnAdapters(), packs));
  }
  const DecoderOptions options = {.dtype = ConfigDtype(student->dtype()),
                                  .device = student->device().str()};
  TAOPD_ASSIGN_OR_RETURN(std::shared_ptr<Decoder> decoder,
                         MakeDecoder(student->config(), options, RandomStream(0)));
  const std::vector<NamedParameter> theirs = student->Parameters(), ours = decoder->Parameters();
  bool is_same = theirs.size() == ours.size();
  for (size_t i = 0; is_same && i < ours.size(); ++i) {
    is_same =
        theirs[i].first == ours[i].first && theirs[i].second.sizes() == ours[i].second.sizes();
  }
  if (!is_same) {
    return InvalidArgument(
        "the student has other parameters than its config.json describes; they cannot be copied");
  }
  return std::unique_ptr<GenerationWeights>(
      new GenerationWeights(student, std::move(decoder), packs));
}

void GenerationWeights::Take(int64_t version) {
  {
    const at::NoGradGuard no_grad;
    const std::vector<NamedParameter> from = student_->TrainedParameters(),
                                      to = decoder_->TrainedParameters();
    for (size_t i = 0; i < from.size(); ++i) at::Tensor(to[i].second).copy_(from[i].second);
  }
  PrepareWritten(version);
}

void GenerationWeights::PrepareWritten(int64_t version) {
  const c10::InferenceMode inference;
  if (packs_) decoder_->PrepareInference();
  version_.store(version);
}

}  // namespace taopd
