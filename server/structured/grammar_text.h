// A compiled grammar, a text that must match it, and the text's masks as the engine sees them.
//
// The GrammarHost's thread owns most of a grammar and of a text. Other threads reach that thread
// through HostTasks and take masks from a text under its lock. No lock here is held during I/O.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"
#include "common/engine/engine_request.h"
#include "server/structured/grammar_spec.h"
#include "server/structured/wire.h"

namespace taopd {

class GrammarHost;

// The tasks of the host's thread. Thread-safe; outlives the host.
class HostTasks {
 public:
  using Task = std::function<void(GrammarHost&)>;

  HostTasks();

  // Adds a task and wakes the host. Returns false, and adds nothing, after Close. Never blocks.
  bool Post(Task task);
  // Takes out all tasks and clears wake_fd().
  std::vector<Task> Take();
  void Close();
  bool is_closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }
  int wake_fd() const { return wake_fd_.get(); }  // readable when there are tasks

 private:
  const FileDescriptor wake_fd_;
  mutable absl::Mutex mutex_;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// A grammar that has been compiled.
class Grammar {
 public:
  // Returns the masks of one text. Where the text is complete, the masks also allow the ids that
  // end it: the model's and stop_ids. After one of these, all ids are allowed.
  //
  // taopd-grammar learns of the text when the engine first asks for a mask (LogitMask::Prepare). If
  // the process ends, a new one gets the text so far. The text fails with UNAVAILABLE only if that
  // happens several times or a mask does not come in time. Errors that the grammar itself causes
  // are INVALID_ARGUMENT. The mask keeps the grammar alive.
  static std::shared_ptr<LogitMask> NewMask(std::shared_ptr<Grammar> grammar,
                                            std::vector<int32_t> stop_ids);

 private:
  friend class GrammarHost;
  friend class GrammarMask;
  Grammar(uint64_t id, GrammarSpec spec, std::shared_ptr<HostTasks> tasks,
          absl::Duration max_mask_wait)
      : id_(id), spec_(std::move(spec)), tasks_(std::move(tasks)), max_mask_wait_(max_mask_wait) {}

  const uint64_t id_;
  const GrammarSpec spec_;
  const std::shared_ptr<HostTasks> tasks_;
  const absl::Duration max_mask_wait_;
  // Used only by the host's thread.
  bool is_compiled_ = false;  // in the current process
  bool is_queued_ = false;    // will be compiled again
};

struct GrammarText {
  std::shared_ptr<Grammar> grammar;
  std::vector<int32_t> stop_ids;

  // Used only by the host's thread.
  uint64_t id = 0;           // 0 = the host does not know the text yet
  std::vector<int32_t> ids;  // so far
  bool is_open = false;      // in the current process
  bool is_wanted = false;    // the mask after `ids` is awaited
  int num_restarts = 0;      // number of processes that ended while it waited

  absl::Mutex mutex;
  // The number of ids before the newest mask; UINT64_MAX means that there is no mask yet.
  uint64_t position ABSL_GUARDED_BY(mutex) = UINT64_MAX;
  bool restricts ABSL_GUARDED_BY(mutex) = false;
  std::string bits ABSL_GUARDED_BY(mutex);
  absl::Status failure ABSL_GUARDED_BY(mutex);  // if not OK, there are no more masks
};

}  // namespace taopd
