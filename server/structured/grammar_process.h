// One compiled grammar: the server's end of the socket to its process (wire.h), and the masks of the
// texts under it.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"
#include "common/engine/engine.h"
#include "server/structured/grammar_spec.h"

namespace taopd {

// Thread-safe. The process ends with the object, which its masks share.
class Grammar {
 public:
  // Compiles the spec in the process at the other end of `fd`, and waits for it. Returns
  //   INVALID_ARGUMENT   the spec is malformed, is unsupported, or takes more than limits.h gives it
  //   UNAVAILABLE        the process could not be started, or did not answer in time
  // eos_ids are those of the model.
  static absl::StatusOr<std::shared_ptr<Grammar>> Compile(int fd, const GrammarSpec& spec,
                                                          std::vector<int32_t> eos_ids);

  // A new text under the grammar, for one sequence. Where the text is complete, the ids that end it
  // are allowed: the model's, and stop_ids. Behind the first of them everything is.
  //
  // The mask of a token is computed by the process while the engine computes its logits: it is asked
  // for when the token before is known (LogitMask::Prepare). If the process ends, the sequences under
  // this grammar fail with INVALID_ARGUMENT.
  // The mask holds the pointer that it is given, and with it what else the pointer keeps.
  static std::shared_ptr<LogitMask> NewMask(std::shared_ptr<Grammar> grammar,
                                            const std::vector<int32_t>& stop_ids);

  // Whether the process can still be asked.
  bool is_alive() const;

 private:
  friend class GrammarMask;
  struct Reply {
    uint32_t position = 0;
    std::string frame;  // behind the position
  };

  Grammar(int fd, std::vector<int32_t> eos_ids) : fd_(fd), eos_ids_(std::move(eos_ids)) {}

  uint32_t Open(const std::vector<int32_t>& stop_ids);
  void Close(uint32_t sequence);
  // Asks for the mask behind so many ids, of which `ids` are new. Does not wait for the answer.
  void Advance(uint32_t sequence, uint32_t position, std::span<const int32_t> ids);
  // Waits for the answer.
  absl::StatusOr<std::string> Await(uint32_t sequence, uint32_t position);

  void SendLocked(const std::string& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReceiveLocked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FileDescriptor fd_;
  const std::vector<int32_t> eos_ids_;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // why the process cannot be asked any more
  uint32_t num_opened_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, Reply> replies_ ABSL_GUARDED_BY(mutex_);  // the last one of each open sequence
};

}  // namespace taopd
