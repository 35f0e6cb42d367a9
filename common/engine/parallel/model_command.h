// The command by which rank 0 of a tensor parallel model makes the other ranks execute the same
// call on their slices of the model. It does not hold hidden states: rank 0 broadcasts them in the
// group after the command.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/decoder.h"
#include "common/model/kernel_setup.h"

namespace taopd {

struct ModelCommand {
  enum class Kind {
    kLoad,
    kPrepare,  // PrepareInference
    kKeep,     // KeepForInferenceOnly
    kInfer,
    kCopyBlock,
    kLogits,
    kScore,
  };
  Kind kind = Kind::kInfer;

  // kLoad
  std::string model_dir = {}, merged_adapter_dir = {};
  KernelUse use = {};  // with the rank's own device
  int64_t num_threads = 0;
  int64_t rank = 0, num_ranks = 1;
  int64_t master_port = 0;  // port of 127.0.0.1 on which rank 0 listens
  // kInfer: the batch, sequence by sequence.
  std::vector<int64_t> token_ids = {}, num_rows = {}, past_lens = {};
  std::vector<std::vector<int32_t>> block_tables = {};
  // kInfer, kCopyBlock: the pages.
  int64_t num_blocks = 0;
  bool for_whole_sequences = false;
  int64_t from_block = 0, to_block = 0;
  // kLogits, kScore: the number of rows that follow.
  int64_t hidden_rows = 0;
  // kScore
  std::vector<int32_t> sampled_ids = {};  // empty if there are none
  std::vector<int32_t> candidate_ids = {};
  int64_t num_candidates = 0;  // per row
  ScoringOptions scoring = {};

  std::string Encode() const;  // CBOR
  static absl::StatusOr<ModelCommand> Decode(const std::string& bytes);
};

}  // namespace taopd
