// Rank 0 of a tensor parallel model: a Decoder that starts the other ranks as processes of this
// machine, tells them each call (model_command.h), and makes it on its own slice.
//
// What can go wrong ends the model: a lost or stuck rank, and an exception in any of them. Infer,
// Logits and ScoreRows then throw, Health() says why, and only a new process helps.
//
// Threads: one thread at a time calls Infer, Logits, ScoreRows, CopyBlock, PrepareInference and
// KeepForInferenceOnly; any thread may call the rest.
#pragma once

#include <memory>
#include <string>

#include "common/model/decoder.h"

namespace taopd {

// Starts size - 1 processes, loads a slice in each, and joins them. `options` are those of
// LoadDecoder; a device of "auto" or "cuda" is one a rank: cuda:0, cuda:1, ... The ranks on a CPU
// share its threads: num_threads in all, 0 = all cores. Errors are those of LoadDecoder and
// CheckTensorParallel, with the rank that had one.
absl::StatusOr<std::unique_ptr<Decoder>> LoadTensorParallel(const std::string& model_dir,
                                                            const DecoderOptions& options,
                                                            int64_t size, int num_threads);

}  // namespace taopd
