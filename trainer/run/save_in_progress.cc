#include "trainer/run/save_in_progress.h"

#include <absl/time/clock.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "common/base/log.h"
#include "common/model/torch_errors.h"

namespace taopd {
namespace {

template <typename T>
bool IsReady(std::future<T>& future, bool waits) {
  if (!future.valid()) return true;
  if (waits) future.wait();
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// Turns exceptions into a status, because nobody could catch them in the threads.
template <typename Write>
auto CatchExceptionsOf(const Write& write) -> decltype(write()) {
  try {
    return write();
  } catch (const std::exception& error) {
    return StatusOfException(error, "writing a checkpoint");
  }
}

// Runs `work` in a thread. If none can be started, the future has `failed` of the error instead.
template <typename Work, typename Failed>
auto Launch(Work work, const Failed& failed) -> std::future<decltype(work())> {
  try {
    return std::async(std::launch::async, std::move(work));
  } catch (const std::system_error& error) {
    std::promise<decltype(work())> result;
    result.set_value(failed(ResourceExhausted("no thread to write a checkpoint: ", error.what())));
    return result.get_future();
  }
}

void LogSaved(int64_t step, const absl::StatusOr<std::string>& path) {
  if (path.ok()) {
    LogInfo("checkpoint saved", {{"step", step}, {"path", *path}});
  } else {
    LogError("checkpoint not saved", {{"step", step}, {"error", path.status()}});
  }
}

}  // namespace

std::unique_ptr<SaveInProgress> SaveInProgress::Start(ProcessGroup* group, CheckpointStore* store,
                                                      int64_t step, WriteFiles write,
                                                      int64_t mini_batch) {
  std::unique_ptr<SaveInProgress> save(new SaveInProgress(group, step));
  std::string dir;
  if (group->is_root()) {
    dir = save->StartWhole(store, std::move(write), mini_batch).get();
  }
  if (group->world_size() == 1) {
    save->FinishParts(absl::OkStatus());
    return save;
  }
  const absl::StatusOr<std::string> dir_of_root = group->BroadcastText(dir, 0);
  if (!dir_of_root.ok()) {
    save->FinishAsFailed(dir_of_root.status());
  } else if (!group->is_root() && !dir_of_root->empty()) {
    save->part_ =
        Launch([write = std::move(write),
                dir = *dir_of_root] { return CatchExceptionsOf([&] { return write(dir); }); },
               [](const absl::Status& error) { return error; });
  }
  return save;
}

std::future<std::string> SaveInProgress::StartWhole(CheckpointStore* store, WriteFiles write,
                                                    int64_t mini_batch) {
  const auto begun = std::make_shared<std::promise<std::string>>();
  auto save = [step = step_, mini_batch, store, write = std::move(write), begun,
               parts = parts_.get_future().share()]() mutable {
    const absl::Time start = absl::Now();
    SaveResult saved;
    saved.step = step;
    bool has_begun = false;
    const auto write_all = [&](const std::string& dir) {
      has_begun = true;
      begun->set_value(dir);
      absl::Status status = CatchExceptionsOf([&] { return write(dir); });
      write = nullptr;  // frees the copies that it owns
      status.Update(parts.get());
      return status;
    };
    saved.path = CatchExceptionsOf([&] { return store->Save(step, write_all, mini_batch); });
    // The checkpoint exists already, or its directory could not be made, so the other ranks have
    // nothing to do.
    if (!has_begun) begun->set_value("");
    LogSaved(step, saved.path);
    saved.duration = absl::Now() - start;
    return saved;
  };
  whole_ = Launch(std::move(save), [&](const absl::Status& error) {
    begun->set_value("");
    LogSaved(step_, error);
    return SaveResult{step_, error, absl::ZeroDuration()};
  });
  return begun->get_future();
}

SaveInProgress::~SaveInProgress() {
  if (!knows_parts_) FinishParts(absl::CancelledError("the run has ended"));
}

void SaveInProgress::FinishParts(const absl::Status& status) {
  knows_parts_ = true;
  parts_.set_value(status);
}

bool SaveInProgress::IsDone(bool waits) {
  if (result_) return true;
  if (!knows_parts_) {
    const auto unready = group_->AgreeOnLargest(IsReady(part_, waits) ? 0 : 1);
    if (!unready.ok()) return FinishAsFailed(unready.status());
    if (*unready > 0) return false;
    FinishParts(group_->AgreeOnStatus(part_.valid() ? part_.get() : absl::OkStatus()));
  }
  const auto unready = group_->AgreeOnLargest(IsReady(whole_, waits) ? 0 : 1);
  if (!unready.ok()) return FinishAsFailed(unready.status());
  if (*unready > 0) return false;
  SaveResult saved = whole_.valid() ? whole_.get() : SaveResult{step_, "", absl::ZeroDuration()};
  if (group_->world_size() > 1) {
    const absl::Status status = group_->AgreeOnStatus(saved.path.status());
    saved.path = status.ok() ? group_->BroadcastText(saved.path.value_or(""), 0)
                             : absl::StatusOr<std::string>(status);
  }
  result_ = std::move(saved);
  return true;
}

bool SaveInProgress::FinishAsFailed(const absl::Status& status) {
  if (!knows_parts_) FinishParts(status);
  if (whole_.valid()) whole_.wait();
  result_ = SaveResult{step_, status, absl::ZeroDuration()};
  return true;
}

}  // namespace taopd
