// The EngineWeights of a Decoder.
#pragma once

#include <memory>

#include "common/engine/engine_weights.h"
#include "common/model/decoder.h"

namespace taopd {

// REQUIRES: the decoder is that of Decoder::ReplaceParameters, and stays so.
std::unique_ptr<EngineWeights> MakeDecoderWeights(std::shared_ptr<Decoder> decoder);

}  // namespace taopd
