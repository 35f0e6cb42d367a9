// The optimizer's state in a checkpoint of several ranks: each writes what it has, and any number of
// ranks reads it back.
//
// Every tensor of the state is stored flat, in chunks: a chunk has the tensor's name and the place
// of its first element in DCP_SHARDING_INFO of the file's metadata. That is the layout of PyTorch's
// distributed checkpoints in Hugging Face files (its module hf_storage), whose
// reader joins the chunks of all files of the directory. A name occurs once in a file, so a rank
// with several chunks of one tensor writes several files:
//
//   optimizer/shard-00001-model-00001-of-00002.safetensors   rank 1, its first chunks
#pragma once

#include <string>

#include "common/base/status.h"
#include "trainer/optim/adamw.h"

namespace taopd {

// Writes the files of rank `rank` into `dir`, which exists.
absl::Status WriteOptimizerShards(const AdamW& optimizer, int64_t rank, const std::string& dir);

// Reads this rank's part from the files of all ranks that wrote into `dir`; moments and master
// copies are converted as by AdamW::Load. Returns DATA_LOSS if they are not those of this model or
// if they lack an element.
absl::Status ReadOptimizerShards(const std::string& dir, AdamW* optimizer);

}  // namespace taopd
