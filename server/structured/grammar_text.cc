#include "server/structured/grammar_text.h"

#include <absl/time/clock.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "common/base/check.h"
#include "server/structured/grammar_host.h"

namespace taopd {

HostTasks::HostTasks() : wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TAOPD_CHECK_GE(wake_fd(), 0);
}

bool HostTasks::Post(Task task) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    tasks_.push_back(std::move(task));
    if (tasks_.size() > 1) return true;  // the host has already been woken
  }
  const uint64_t one = 1;
  (void)!::write(wake_fd(), &one, sizeof(one));
  return true;
}

std::vector<HostTasks::Task> HostTasks::Take() {
  absl::MutexLock lock(&mutex_);
  uint64_t count = 0;
  (void)!::read(wake_fd(), &count, sizeof(count));
  return std::exchange(tasks_, {});
}

void HostTasks::Close() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  const uint64_t one = 1;
  (void)!::write(wake_fd(), &one, sizeof(one));
}

// Used by one thread at a time.
class GrammarMask final : public LogitMask {
 public:
  explicit GrammarMask(std::shared_ptr<GrammarText> text) : text_(std::move(text)) {}
  ~GrammarMask() override {
    text_->grammar->tasks_->Post([text = text_](GrammarHost& host) { host.Close(text); });
  }

  absl::StatusOr<bool> Mask(std::span<const int32_t> generated_ids,
                            std::span<uint64_t> allowed_bits) override {
    IsReady(generated_ids, text_->grammar->max_mask_wait_);
    absl::MutexLock lock(&text_->mutex);
    TAOPD_RETURN_IF_ERROR(text_->failure);
    if (text_->position != num_asked_) {
      return Unavailable("structured output: the mask of a token did not come within ",
                         absl::FormatDuration(text_->grammar->max_mask_wait_), "; try again");
    }
    if (!text_->restricts) return false;
    if (text_->bits.size() != allowed_bits.size_bytes()) {
      return Internal("a mask of ", text_->bits.size(), " bytes, expected ",
                      allowed_bits.size_bytes());
    }
    std::memcpy(allowed_bits.data(), text_->bits.data(), text_->bits.size());
    return true;
  }

  void Prepare(std::span<const int32_t> generated_ids) override {
    // A preempted sequence keeps its generated ids, so their number only grows.
    if (is_asked_ && generated_ids.size() <= num_asked_) return;
    std::vector<int32_t> new_ids(generated_ids.begin() + static_cast<ptrdiff_t>(num_asked_),
                                 generated_ids.end());
    is_asked_ = true;
    num_asked_ = generated_ids.size();
    asked_at_ = absl::Now();
    const bool posted = text_->grammar->tasks_->Post(
        [text = text_, ids = std::move(new_ids)](GrammarHost& host) { host.Ask(text, ids); });
    if (posted) return;
    absl::MutexLock lock(&text_->mutex);
    text_->failure = Unavailable("structured output: the server is shutting down");
  }

  bool IsReady(std::span<const int32_t> generated_ids, absl::Duration wait) override {
    Prepare(generated_ids);
    absl::MutexLock lock(&text_->mutex);
    const auto has_arrived = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(text_->mutex) {
      return text_->position == num_asked_ || !text_->failure.ok();
    };
    if (wait > absl::ZeroDuration())
      text_->mutex.AwaitWithTimeout(absl::Condition(&has_arrived), wait);
    return has_arrived() || absl::Now() - asked_at_ >= text_->grammar->max_mask_wait_;
  }

 private:
  const std::shared_ptr<GrammarText> text_;
  bool is_asked_ = false;
  uint64_t num_asked_ = 0;  // ids before the mask that was asked for last
  absl::Time asked_at_ = absl::InfinitePast();
};

std::shared_ptr<LogitMask> Grammar::NewMask(std::shared_ptr<Grammar> grammar,
                                            std::vector<int32_t> stop_ids) {
  auto text = std::make_shared<GrammarText>();
  text->grammar = std::move(grammar);
  text->stop_ids = std::move(stop_ids);
  return std::make_shared<GrammarMask>(std::move(text));
}

}  // namespace taopd
