// The optimizer's state in a checkpoint of several ranks. Each rank writes its part, and any number
// of ranks can read the state back.
//
// Every tensor of the state is stored flat, in chunks. A chunk has the tensor's name, and
// DCP_SHARDING_INFO in the file's metadata gives the place of its first element. This is the layout
// of PyTorch's distributed checkpoints in Hugging Face files (its module hf_storage), whose reader
// joins the chunks of all files of the directory. A name occurs once in a file, so a rank with
// several chunks of one tensor writes several files:
//
//   optimizer/shard-00001-model-00001-of-00002.safetensors   rank 1, its first chunks
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/optim/adamw.h"
#include "trainer/optim/saved_state.h"

namespace taopd {

// The files that rank `rank` writes. With `copies` the object copies the tensors, so that another
// thread may write them while the optimizer continues. Otherwise it refers to the tensors of the
// optimizer, which must outlive it.
class OptimizerShardsToWrite {
 public:
  OptimizerShardsToWrite(const AdamW& optimizer, int64_t rank, bool copies);
  // Writes the files into `dir`, which must exist.
  absl::Status Write(const std::string& dir) const;

 private:
  struct File {
    std::string name;
    StateToWrite state;
    std::string places;
  };
  std::vector<File> files_;
};

// Reads this rank's part from the files of all ranks in `dir`. Moments and master copies are
// converted as by AdamW::Load. Returns DATA_LOSS if the files belong to another model or lack an
// element.
absl::Status ReadOptimizerShards(const std::string& dir, AdamW* optimizer);

}  // namespace taopd
