// Rank 0 of a tensor parallel model: a Decoder that starts the other ranks as processes of this
// machine, sends them each call (model_command.h), and executes it on its own slice.
//
// Any failure is final: a lost or stuck rank, or an exception in any rank. Afterwards Infer, Logits
// and ScoreRows throw, Health() returns the reason, and the process must be restarted.
//
// Threads: one thread at a time calls Infer, Logits, ScoreRows, CopyBlock, PrepareInference and
// KeepForInferenceOnly; any thread may call the rest.
#pragma once

#include <memory>
#include <string>

#include "common/model/kernel_setup.h"
#include "common/model/weights/model_files.h"

namespace taopd {

// Starts size - 1 processes, loads a slice in each, and joins them. `options` are those of
// LoadDecoder. The new processes choose their kernels by `kernels`; the caller has done so already.
// With the device "auto" or "cuda", each rank has a GPU of its own: cuda:0, cuda:1, ... Ranks on a
// CPU share num_threads threads; 0 means all cores. Returns the errors of LoadDecoder and
// CheckTensorParallel, with the rank that failed.
absl::StatusOr<std::unique_ptr<Decoder>> LoadTensorParallel(const std::string& model_dir,
                                                            const DecoderOptions& options,
                                                            const KernelUse& kernels, int64_t size,
                                                            int num_threads);

}  // namespace taopd
