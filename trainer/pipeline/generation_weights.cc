#include "trainer/pipeline/generation_weights.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <utility>
#include <vector>

#include "common/model/weights/weights.h"

namespace taopd {

namespace {

void Copy(const std::vector<NamedParameter>& from, const std::vector<NamedParameter>& to) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) at::Tensor(to[i].second).copy_(from[i].second);
}

bool HasSame(const std::vector<NamedParameter>& theirs, const std::vector<NamedParameter>& ours) {
  bool is_same = theirs.size() == ours.size();
  for (size_t i = 0; is_same && i < ours.size(); ++i) {
    is_same =
        theirs[i].first == ours[i].first && theirs[i].second.sizes() == ours[i].second.sizes();
  }
  return is_same;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GenerationWeights>> GenerationWeights::Make(const Decoder* student) {
  DecoderOptions options;
  options.dtype = ConfigDtype(student->dtype());
  options.device = student->device().str();
  if (student->lora() != nullptr) options.lora.emplace().config = *student->lora();
  TAOPD_ASSIGN_OR_RETURN(std::shared_ptr<Decoder> decoder,
                         MakeDecoder(student->config(), options, RandomStream(0)));
  if (!HasSame(student->Parameters(), decoder->Parameters()) ||
      !HasSame(student->TrainedParameters(), decoder->TrainedParameters())) {
    return InvalidArgument(
        "the student has other parameters than its config.json describes, of which no copy can be "
        "made");
  }
  // Steps do not change the base of adapters.
  if (student->lora() != nullptr) Copy(student->Parameters(), decoder->Parameters());
  return std::unique_ptr<GenerationWeights>(new GenerationWeights(student, std::move(decoder)));
}

void GenerationWeights::Take(int64_t version) {
  Copy(student_->TrainedParameters(), decoder_->TrainedParameters());
  Written(version);
}

void GenerationWeights::Written(int64_t version) {
  const c10::InferenceMode inference;
  decoder_->PrepareInference();
  version_.store(version);
}

}  // namespace taopd
