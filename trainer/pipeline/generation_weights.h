// Holds the student's weights of an earlier step in a decoder of their own, which generates
// rollouts or is evaluated while the optimizer changes the student.
//
// With adapters (student.lora), the two decoders share the frozen base, and a version is a copy of
// the adapters.
//
// Memory: one more copy of what is trained. On a CPU the packed copy that inference reads
// (common/model/weights/packed_weights.h) is made here instead of in the student's decoder.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/model/decoder.h"
#include "trainer/pipeline/rollout_weights.h"

namespace taopd {

class GenerationWeights final : public RolloutWeights {
 public:
  // Makes a decoder like `student`, which must outlive the object. Its values are undefined before
  // Take. Returns INVALID_ARGUMENT if the student has other parameters than its configuration
  // describes, and the errors of MakeDecoder.
  // Without `packs`, nothing is prepared for inference: this process then uses the decoder as in
  // training, or not at all.
  static absl::StatusOr<std::unique_ptr<GenerationWeights>> Make(const Decoder* student,
                                                                 bool packs = true);

  // Copies the student's current weights, which are `version` from then on, and prepares inference.
  // REQUIRES: no request that reads the decoder is waiting or running.
  void Take(int64_t version) override;
  // Prepares inference with weights that the caller has written into the decoder, and that are
  // `version` from then on. REQUIRES: as Take.
  void PrepareWritten(int64_t version);
  int64_t version() const override { return version_.load(); }
  const std::shared_ptr<Decoder>& decoder() const { return decoder_; }

 private:
  GenerationWeights(const Decoder* student, std::shared_ptr<Decoder> decoder, bool packs)
      : student_(student), decoder_(std::move(decoder)), packs_(packs) {}

  const Decoder* const student_;
  const std::shared_ptr<Decoder> decoder_;
  const bool packs_;
  std::atomic<int64_t> version_{-1};
};

}  // namespace taopd
