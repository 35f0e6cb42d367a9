// A directory of teachers' scores by the key of their request (ScoreKey).
//
// Each entry is a file, written under a temporary name and renamed, so that any number of processes
// may share the directory. A torn or damaged file fails its checksum: it is counted, deleted and
// treated as missing. A file that cannot be read is a miss, too, but stays. Entries are not synced
// to the disk, so a power failure may tear them.
//
//   DIR/ab/cdef...    entries, by the first digits of their key
//   DIR/teachers/     information on the teachers, for runs without them
//
// If the entries exceed the limit, the least recently used ones are deleted, by the time stamps of
// their files. An object records a use of an entry at most once per hour. Files with other names
// stay.
//
// Thread-safe.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

struct ScoreCacheStats {
  uint64_t hits = 0;
  uint64_t misses = 0;  // including damaged entries
  uint64_t damaged = 0;
  uint64_t evicted = 0;      // by this object
  uint64_t evicted_new = 0;  // of these, entries that were written or read since it was opened
  uint64_t failed_writes = 0;
  uint64_t failed_trims = 0;  // the cache may exceed its limit after one
  uint64_t bytes_written = 0;
};

class ScoreCache {
 public:
  // Creates the directory if it does not exist. All entries together take at most about max_bytes,
  // plus a twentieth for each further object that writes to the directory, unless old ones cannot
  // be deleted, which is counted and logged once.
  static absl::StatusOr<std::unique_ptr<ScoreCache>> Open(const std::string& dir,
                                                          int64_t max_bytes);

  // Returns the scores of the request by the teacher of this identity (TeacherInfo), without their
  // revision, or nullopt if they are not cached.
  std::optional<TeacherScores> Find(const TeacherRequest& request, const std::string& identity);
  // Stores an answer. A failure, such as a full disk, is counted and logged once.
  void Put(const TeacherRequest& request, const std::string& identity, const TeacherScores& scores);

  // Returns the last known information on the teacher at these endpoints, or NOT_FOUND if there is
  // none. `model` is what the servers were asked for (teacher.model), or empty.
  absl::StatusOr<TeacherInfo> FindTeacher(const std::vector<std::string>& endpoints,
                                          const std::string& model) const;
  // Keeps a larger max_top_k that is known of the same teacher: for vLLM and SGLang it is only what
  // a run has asked for, and the cache has the scores of all runs.
  absl::Status PutTeacher(const std::vector<std::string>& endpoints, const std::string& model,
                          TeacherInfo info) const;

  ScoreCacheStats stats() const;
  // Returns the size of the entries as far as this process knows it.
  int64_t size_bytes() const;

 private:
  ScoreCache(std::string dir, int64_t max_bytes)
      : dir_(std::move(dir)), max_bytes_(max_bytes), trim_above_bytes_(max_bytes) {}
  std::string PathOf(const std::string& key) const;
  absl::Status Write(const std::string& key, const std::string& bytes);
  // Computes the size of the entries and deletes old ones until they fit again.
  void Trim();
  // Returns the first error. Entries that cannot be deleted stay in size_bytes_.
  absl::Status DeleteOldEntries();

  const std::string dir_;
  const int64_t max_bytes_;
  const time_t opened_s_ = ::time(nullptr);  // by the clock of the files' time stamps
  mutable absl::Mutex mutex_;
  ScoreCacheStats stats_ ABSL_GUARDED_BY(mutex_);
  int64_t size_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t trim_above_bytes_ ABSL_GUARDED_BY(mutex_);  // value of size_bytes_ for the next Trim
  uint64_t num_temporary_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace taopd
