// The optimizer's state in a checkpoint of several ranks: each writes what it has, and any number
// of ranks reads it back.
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
#include <vector>

#include "common/base/status.h"
#include "trainer/optim/adamw.h"
#include "trainer/optim/saved_state.h"

namespace taopd {

// The files of rank `rank`, as they are to be written. With `copies` it has tensors of its own, so
// that another thread may write while the optimizer goes on; else it refers to those of the
// optimizer, which outlives it.
class OptimizerShardsToWrite {
 public:
  OptimizerShardsToWrite(const AdamW& optimizer, int64_t rank, bool copies);
  // Writes the files into `dir`, which exists.
  absl::Status Write(const std::string& dir) const;

 private:
  struct File {
    std::string name;
    StateToWrite state;
    std::string places;
  };
  std::vector<File> files_;
};

// Reads this rank's part from the files of all ranks that wrote into `dir`; moments and master
// copies are converted as by AdamW::Load. Returns DATA_LOSS if they are not those of this model or
// if they lack an element.
absl::Status ReadOptimizerShards(const std::string& dir, AdamW* optimizer);

}  // namespace taopd
